package path

import (
	"slices"
	"time"
)

// This file remembers which paths a connection left, and why. A path is left when its subflow ends while the connection
// goes on, or becomes a backup because the connection is better off without it. The reason is recorded with the decision,
// because the subflow may end seconds later, and the numbers have changed by then.

// mostDepartures bounds the departures that a connection remembers.
const mostDepartures = 8

// Departure is a path that a connection left, and the reason.
type Departure struct {
	Kind     string // as in SubflowState
	Waypoint string // empty: the direct path
	At       time.Time
	// Ended is set if the subflow ended. Otherwise it became a backup.
	Ended  bool
	Reason SubflowReason
}

// Why returns the reason as text: a clause that follows "because".
func (d *Departure) Why() string { return d.Reason.leftWords() }

// departures holds the paths that a connection is to leave, and those that it left. Few connections need it, so it is
// allocated for the first.
type departures struct {
	planned []plannedEnd // of subflows that still exist
	past    []Departure  // the earliest first, at most mostDepartures
}

// plannedEnd is the reason why a subflow is to end.
type plannedEnd struct {
	*subflow
	why SubflowReason
}

// planEnd records why a subflow is to end. The reason replaces an earlier one.
func (c *conn) planEnd(s *subflow, why SubflowReason) {
	if c.departures == nil {
		c.departures = &departures{}
	}
	c.takePlanned(s)
	c.departures.planned = append(c.departures.planned, plannedEnd{s, why})
}

// takePlanned returns why a subflow was to end, and forgets it.
func (c *conn) takePlanned(s *subflow) (why SubflowReason, ok bool) {
	if c.departures == nil {
		return why, false
	}
	i := slices.IndexFunc(c.departures.planned, func(p plannedEnd) bool { return p.subflow == s })
	if i < 0 {
		return why, false
	}
	why = c.departures.planned[i].why
	c.departures.planned = slices.Delete(c.departures.planned, i, i+1)
	return why, true
}

// leaveFor marks a subflow as leaving. The first reason counts.
func (c *conn) leaveFor(s *subflow, why SubflowReason) {
	if !s.leaving {
		s.leaving = true
		c.planEnd(s, why)
	}
}

// departs records that the connection left the path of a subflow. It replaces an earlier departure from the same path for
// the same cause, so that one path does not displace all others.
func (c *conn) departs(s *subflow, ended bool, why SubflowReason, at time.Time) {
	if !s.up || s.detour == nil && !s.direct {
		return
	}
	if c.departures == nil {
		c.departures = &departures{}
	}
	departure := Departure{Kind: directWord, Waypoint: s.waypoint(), At: at, Ended: ended, Reason: why}
	if s.detour != nil {
		departure.Kind = s.detour.Kind.String()
	}
	d := c.departures
	d.past = slices.DeleteFunc(d.past, func(x Departure) bool {
		return x.Kind == departure.Kind && x.Waypoint == departure.Waypoint && x.Reason.Cause == why.Cause
	})
	if len(d.past) == mostDepartures {
		d.past = slices.Delete(d.past, 0, 1)
	}
	d.past = append(d.past, departure)
}

// departsAside records that the connection left the path of a subflow that was just set aside.
func (t turn) departsAside(s *subflow) { t.departs(s, false, s.aside.reason(), t.now) }

// leftPaths returns the paths that the connection left, the earliest first.
func (c *conn) leftPaths() []Departure {
	if c.departures == nil {
		return nil
	}
	return slices.Clone(c.departures.past)
}
