package path

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file evaluates the round trips of the sessions with waypoints. It also finds out whether packets of two
// sessions wait in one queue, which is then that of this host's line (line.go).

const (
	// sessionCounts is the time for which a session's round trip counts. Sessions send a ping each second.
	sessionCounts = 2500 * time.Millisecond
	// asksEvery is the time between measurements of all sessions while those are measured often.
	asksEvery = 200 * time.Millisecond
	// asksFor is the time for which sessions are measured often after a detour began to carry bulk traffic.
	asksFor = 5 * time.Second
	// atOnce is the longest time between the reports of two round trips that are compared.
	atOnce = 20 * time.Millisecond
	// agreesMost is the longest time for which a series of agreeing round trips is measured often.
	agreesMost = 10 * time.Second
	// sentTogether is the number of ways to pair the packets of two sessions whose round trips were reported at the
	// same time. The latest packet of the session with the longer round trip may have been sent one measurement
	// earlier.
	sentTogether = 3
)

// sessionWorth holds what the session with a waypoint shows of the path to it.
type sessionWorth struct {
	trip   time.Duration // shortest round trip
	loss   float64       // least share of lost packets that the losses prove
	latest time.Duration // latest round trip
	at     time.Time     // when latest was reported

	previous time.Duration // the round trip reported before latest
}

// takes brings a session's measurements up to date.
func (x *sessionWorth) takes(ev WaypointMeasured, now time.Time) {
	least, _ := measure.Interval(ev.Loss, ev.Packets)
	*x = sessionWorth{ev.RTT, least, ev.Latest, now, x.latest}
}

// sessionPairs compares the round trips of sessions, and holds when they are measured for that.
type sessionPairs struct {
	pairs [sentTogether]measure.Agreement // of the queues of two sessions, for each way to pair them
	at    time.Time                       // when the last round trips that were compared were reported

	wanted time.Time // sessions are to be measured often until then
	asked  time.Time // when sessions were last measured for that
}

// queue returns the part of the session's latest round trip that was spent in queues.
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

// compareSessions compares the latest round trips of two sessions: the one with the shortest queue, and the session
// with another waypoint whose queue is most like it. It returns the shortest queue.
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

// pair returns the waits of packets of two sessions, paired in one of sentTogether ways.
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

// oneQueue reports whether packets of two sessions wait in one queue.
func (c *sessionPairs) oneQueue(now time.Time) bool {
	return slices.ContainsFunc(c.pairs[:], func(a measure.Agreement) bool { return a.Shows(now) })
}

// asksSessions makes the sessions be measured often while the connection's detours are young, or while signs of a
// full line are uncertain.
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

// MeasuresSessions reports whether the sessions with all waypoints are to be measured now, by one packet each. The
// caller asks at each close sample.
func (m *Manager) MeasuresSessions(now time.Time) bool {
	c := &m.detours.compared
	if now.After(c.wanted) || within(c.asked, now, asksEvery-1) {
		return false
	}
	c.asked = now
	return true
}
