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

// sessions holds what the sessions with waypoints show, and when they are to be measured often.
type sessions struct {
	worth map[via]sessionWorth

	pairs    [sentTogether]measure.Agreement // of the queues of two sessions, for each way to pair them
	compared time.Time                       // when the last round trips that were compared were reported

	wanted time.Time // sessions are to be measured often until then
	asked  time.Time // when sessions were last measured for that
}

func newSessions() sessions { return sessions{worth: make(map[via]sessionWorth)} }

// sessionWorth holds what the session with a waypoint shows of the path to it.
type sessionWorth struct {
	trip   time.Duration // shortest round trip
	loss   float64       // least share of lost packets that the losses prove
	latest time.Duration // latest round trip
	at     time.Time     // when latest was reported

	previous time.Duration // the round trip reported before latest
	// answered is a time after which the waypoint has answered; zero: unknown.
	answered time.Time
}

// queue returns the part of the session's latest round trip that was spent in queues.
func (x sessionWorth) queue() time.Duration { return x.latest - x.trip }

// counts reports whether the session's latest round trip is recent.
func (x sessionWorth) counts(now time.Time) bool { return within(x.at, now, sessionCounts) }

// take brings a session's measurements up to date.
func (s *sessions) take(ev WaypointMeasured, now time.Time) {
	v := via{ev.Waypoint, ev.Addr}
	least, _ := measure.Interval(ev.Loss, ev.Packets)
	before := s.worth[v]
	x := sessionWorth{ev.RTT, least, ev.Latest, now, before.latest, before.answered}
	if !before.at.IsZero() && ev.Latest != before.latest { // no two answers take equally long to the nanosecond
		x.answered = before.at
	}
	s.worth[v] = x
}

// answeredSince reports whether a waypoint is known to have answered at a time or later, so that this host is not cut off.
func (s *sessions) answeredSince(at, now time.Time) bool {
	return s.any(now, func(x sessionWorth) bool { return !x.answered.Before(at) })
}

// any reports whether any session was measured lately for which is returns true.
func (s *sessions) any(now time.Time, is func(sessionWorth) bool) bool {
	for _, x := range s.worth {
		if x.counts(now) && is(x) {
			return true
		}
	}
	return false
}

// compare compares the latest round trips of two sessions: the one with the shortest queue, and the session with another
// waypoint whose queue is most like it. It returns the shortest queue.
func (s *sessions) compare(now time.Time) (least time.Duration) {
	var latest time.Time
	for _, x := range s.worth {
		latest = later(latest, x.at)
	}
	var first sessionWorth
	var waypoint string
	for v, x := range s.worth {
		if latest.Sub(x.at) <= atOnce && (waypoint == "" || x.queue() < first.queue()) {
			waypoint, first = v.waypoint, x
		}
	}
	if !latest.After(s.compared) {
		return first.queue()
	}
	s.compared = latest
	for way := range s.pairs {
		found := false
		var one, other time.Duration
		for v, y := range s.worth {
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
			s.pairs[way].Take(now, one, other)
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

// inOneQueue reports whether packets of two sessions wait in one queue.
func (s *sessions) inOneQueue(now time.Time) bool {
	return slices.ContainsFunc(s.pairs[:], func(a measure.Agreement) bool { return a.Shows(now) })
}

// perhapsInOneQueue reports whether the round trips of two sessions have begun to agree, but do not show yet that their
// packets wait in one queue.
func (s *sessions) perhapsInOneQueue(now time.Time) bool {
	return !s.inOneQueue(now) && slices.ContainsFunc(s.pairs[:], func(a measure.Agreement) bool { return a.Begins(now, agreesMost) })
}

// ask has the sessions measured often for a moment.
func (s *sessions) ask(now time.Time) { s.wanted = now.Add(lineGap) }

// due reports whether the sessions are to be measured now.
func (s *sessions) due(now time.Time) bool {
	if now.After(s.wanted) || within(s.asked, now, asksEvery-1) {
		return false
	}
	s.asked = now
	return true
}

// asksSessions reports whether the connection needs the sessions to be measured often: while its detours are young, or
// while signs of a full line are uncertain.
func (t trying) asksSessions(line bool) bool {
	return t.has(func(s *subflow) bool {
		if s.isBehindLine() {
			return t.now.Sub(t.tryouts.began) < asksFor
		}
		return s.up && !s.backup && s.detour != nil && (line || t.now.Sub(later(s.since, s.told.at)) < asksFor)
	})
}

// MeasuresSessions reports whether the sessions with all waypoints are to be measured now, by one packet each. The
// caller asks at each close sample.
func (m *Manager) MeasuresSessions(now time.Time) bool { return m.detours.sessions.due(now) }
