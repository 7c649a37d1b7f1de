package path

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file has what the sessions with waypoints show of the ways there: their round trips, and whether the packets of two of them
// wait in one queue, which then is that of this host's line (line.go).

const (
	// A session's round trip counts for sessionCounts. Sessions send a ping each second, and each asksEvery in the first asksFor of
	// bulk traffic over detours.
	sessionCounts = 2500 * time.Millisecond
	asksEvery     = 200 * time.Millisecond
	asksFor       = 5 * time.Second
	// Round trips that were reported within atOnce are compared. A series of agreeing ones is measured often for agreesMost.
	atOnce     = 20 * time.Millisecond
	agreesMost = 10 * time.Second
	// sentTogether is the number of ways in which the packets of two sessions whose round trips were reported at the same time may have
	// been sent at the same time: of the session with the longer round trip, the latest that has come back may be one earlier.
	sentTogether = 3
)

// sessionWorth is what the session with a waypoint shows of the way there.
type sessionWorth struct {
	trip   time.Duration // the shortest
	loss   float64       // at least
	latest time.Duration // round trip
	at     time.Time     // when that was reported

	previous time.Duration // the round trip that was reported before
}

// takes brings a session's worth up to date.
func (x *sessionWorth) takes(ev WaypointMeasured, now time.Time) {
	least, _ := measure.Interval(ev.Loss, ev.Packets)
	*x = sessionWorth{ev.RTT, least, ev.Latest, now, x.latest}
}

// sessionPairs is what the sessions' round trips show beside each other, and when they are measured for that.
type sessionPairs struct {
	pairs [sentTogether]measure.Agreement // of two sessions' queues
	at    time.Time                       // when the latest round trips that it compared were reported

	wanted time.Time // until when sessions are to be measured often
	asked  time.Time // when they last were
}

// queue returns how much longer the session's latest round trip took than the shortest.
func (x sessionWorth) queue() time.Duration { return x.latest - x.trip }

// anyQueue reports whether any session shows a queue.
func (m *Manager) anyQueue(now time.Time) bool {
	for _, x := range m.detours.sessions {
		if x.queue() >= lineQueue && within(x.at, now, sessionCounts) {
			return true
		}
	}
	return false
}

// compareSessions compares the latest round trips of the session with the shortest queue and of the session with another waypoint whose
// queue is most like it. It returns the shortest queue.
func (m *Manager) compareSessions(now time.Time) (least time.Duration) {
	c, latest := &m.detours.compared, time.Time{}
	for _, x := range m.detours.sessions {
		latest = later(latest, x.at)
	}
	var first sessionWorth
	var waypoint string
	for v, x := range m.detours.sessions {
		if latest.Sub(x.at) <= atOnce && (waypoint == "" || x.queue() < first.queue()) {
			waypoint, first = v.waypoint, x
		}
	}
	if !latest.After(c.at) {
		return first.queue()
	}
	c.at = latest
	for way := range c.pairs {
		found := false
		var one, other time.Duration
		for v, y := range m.detours.sessions {
			if latest.Sub(y.at) > atOnce || v.waypoint == waypoint {
				continue
			}
			a, b := first, y
			if v.waypoint < waypoint {
				a, b = b, a
			}
			if p, q := a.pair(b, way); !found || (p-q).Abs() < (one-other).Abs() {
				one, other, found = p, q, true
			}
		}
		if found {
			c.pairs[way].Take(now, one, other)
		}
	}
	return first.queue()
}

// pair returns how long packets of two sessions waited, in one of these ways.
func (x sessionWorth) pair(y sessionWorth, way int) (one, other time.Duration) {
	switch way {
	case 1:
		return x.previous - x.trip, y.queue()
	case 2:
		return x.queue(), y.previous - y.trip
	default:
		return x.queue(), y.queue()
	}
}

// oneQueue reports whether two sessions' packets wait in one queue.
func (c *sessionPairs) oneQueue(now time.Time) bool {
	return slices.ContainsFunc(c.pairs[:], func(a measure.Agreement) bool { return a.Shows(now) })
}

// asksSessions has the sessions be measured often while the connection's detours are young, or while there are signs of a full line that
// are not certain.
func (m *Manager) asksSessions(t turn, line bool) {
	agrees := func(a measure.Agreement) bool { return a.Begins(t.now, agreesMost) }
	line = line || !m.detours.compared.oneQueue(t.now) && slices.ContainsFunc(m.detours.compared.pairs[:], agrees)
	wants := func(s *subflow) bool {
		if s.isBehindLine() {
			return t.now.Sub(t.tryouts.began) < asksFor
		}
		return s.up && !s.backup && s.detour != nil && (line || t.now.Sub(later(s.since, s.told.at)) < asksFor)
	}
	if t.has(wants) {
		m.detours.compared.wanted = t.now.Add(lineGap)
	}
}

// MeasuresSessions reports whether the sessions with all waypoints are to be measured now, with a packet each. It is asked as often as
// connections are sampled closely.
func (m *Manager) MeasuresSessions(now time.Time) bool {
	c := &m.detours.compared
	if now.After(c.wanted) || within(c.asked, now, asksEvery-1) {
		return false
	}
	c.asked = now
	return true
}
