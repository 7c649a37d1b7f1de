package path

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file finds out whether this host's own line is the bottleneck. Then no detour can add anything to the direct path. The
// sessions with waypoints pass the line, too, and carry next to nothing themselves. So if the packets of sessions wait in a queue
// about as long as the direct path's, although nothing else goes through their waypoints, they wait in the same queue. Where all
// waypoints carry, those could have queues of their own. Then the packets of two sessions that are sent at the same time must wait
// equally long, however the queue changes (measure.Agreement).
//
// Other traffic of this host may fill the line as well. So the finding is only a reason to do without detours for a moment, and to
// compare (omit.go). What that showed is remembered: for a while, detours of new connections begin as backups, and carry as soon as the
// direct path has another bottleneck.

const (
	// A queue of lineQueue is one of the line, if packets wait there for at least linePart of the time that the direct path's do.
	lineQueue = 15 * time.Millisecond
	linePart  = 0.5
	// A session's round trip counts for sessionCounts. Sessions send a ping each second, and each asksEvery in the first asksFor of
	// bulk traffic over detours.
	sessionCounts = 2500 * time.Millisecond
	asksEvery     = 200 * time.Millisecond
	asksFor       = 5 * time.Second
	// Round trips that were reported within atOnce are compared. A series of agreeing ones is measured often for agreesMost.
	atOnce     = 20 * time.Millisecond
	agreesMost = 10 * time.Second
	// Sessions with two waypoints show a queue at once, and those with one after they have done so for lineWaits.
	lineWaits = 1500 * time.Millisecond
	// A full line that lost many packets at once is full again after lineRepairs, and shows it.
	lineRepairs = 4 * time.Second
	// Signs of a full line that are no more than lineGap apart are one series.
	lineGap = time.Second
	// If the connections get less without detours, signs are not believed for doubtsFor, which doubles each time.
	doubtsFor = 30 * time.Second
	// Detours begin as backups for provenLasts after the line was the bottleneck. They carry once the direct path has had another
	// bottleneck for otherFirst, or for otherAfter a sign of a full line. They also carry if bulk traffic has less than lineUsed of what
	// the line carried, and has shown no sign for signsWithin, or the last sign is signsLast ago. Then detours to that network of servers
	// carry from the beginning for provenLasts.
	provenLasts = time.Hour
	otherFirst  = 300 * time.Millisecond
	otherAfter  = 2 * time.Second
	signsWithin = 2 * time.Second
	signsLast   = 10 * time.Second
	lineUsed    = 0.85
	// mostElsewhere bounds the memory of such networks.
	mostElsewhere = 1024
	// No waypoint is tried for lineLasts after the last sign of a full line.
	lineLasts = 20 * time.Second
)

// line is the queue of this host's line, as idle sessions show it.
type line struct {
	least   time.Duration // the shortest of their queues; zero: none was measured
	witness string        // a waypoint whose session shows it
	several bool          // others do, too
	since   time.Time     // since when least is at least lineQueue
	at      time.Time     // when it was brought up to date

	together [sentTogether]measure.Agreement // of two sessions' queues
	compared time.Time                       // when the latest round trips that it compared were reported

	carried   float64   // what this host's connections get, in bits a second
	carriedAt time.Time // when that was brought up to date

	wanted time.Time // until when sessions are to be measured often
	asked  time.Time // when they last were

	proven    time.Time                  // when the line was last known to be the bottleneck
	rate      float64                    // what bulk traffic got then, in bits a second
	elsewhere map[netip.Prefix]time.Time // networks of servers towards which it was not
}

// lineOf returns the queue of this host's line.
func (m *Manager) lineOf(now time.Time) *line {
	l := &m.detours.line
	if l.at.Equal(now) {
		return l
	}
	l.at, l.least, l.witness, l.several = now, 0, "", false
	if m.anyQueue(now) {
		for v, x := range m.detours.sessions {
			if !within(x.at, now, sessionCounts) || m.isCarrying(v.waypoint, now) {
				continue
			}
			if queue := x.queue(); l.witness == "" || queue < l.least {
				l.least = queue
			}
			l.several = l.several || l.witness != "" && l.witness != v.waypoint
			l.witness = v.waypoint
		}
		least := m.compareSessions(now)
		if l.witness == "" && l.oneQueue(now) {
			l.least, l.several = least, true
		}
	}
	if l.least < lineQueue {
		l.since = time.Time{}
	} else if l.since.IsZero() {
		l.since = now
	}
	return l
}

// compareSessions compares the latest round trips of the session with the shortest queue and of the session with another waypoint whose
// queue is most like it. It returns the shortest queue.
func (m *Manager) compareSessions(now time.Time) (least time.Duration) {
	l, latest := &m.detours.line, time.Time{}
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
	if !latest.After(l.compared) {
		return first.queue()
	}
	l.compared = latest
	for way := range l.together {
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
			l.together[way].Take(now, one, other)
		}
	}
	return first.queue()
}

// sentTogether is the number of ways in which the packets of two sessions whose round trips were reported at the same time may have been
// sent at the same time: of the session with the longer round trip, the latest that has come back may be one earlier.
const sentTogether = 3

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
func (l *line) oneQueue(now time.Time) bool {
	return slices.ContainsFunc(l.together[:], func(a measure.Agreement) bool { return a.Shows(now) })
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

// isCarrying reports whether data came or went lately through a waypoint, which could have made a queue there.
func (m *Manager) isCarrying(waypoint string, now time.Time) bool {
	return slices.ContainsFunc(m.conns.watched, func(c *conn) bool {
		return slices.ContainsFunc(c.subflows, func(s *subflow) bool {
			return s.waypoint() == waypoint && s.up && s.habits != nil && within(s.at, now, closeGap) && s.habits.step.received+s.habits.step.acked > 0
		})
	})
}

// fillsLine reports whether the direct path of a connection that tries waypoints waits in the queue of this host's line.
func (m *Manager) fillsLine(t turn) bool {
	if t.tryouts.omissions.line.until.After(t.now) {
		return false
	}
	direct := t.find(func(s *subflow) bool { return s.direct && s.up && !s.backup && s.measuredAt(t.now) })
	if direct == nil {
		return false
	}
	l, queue := m.lineOf(t.now), direct.queue()
	return l.least >= lineQueue && queue >= lineQueue && l.least.Seconds() >= linePart*queue.Seconds() && (l.several || t.now.Sub(l.since) >= lineWaits)
}

// passesLine reports whether the session with a detour's waypoint waits in a queue about as long as those that show the line's.
func (m *Manager) passesLine(d *Detour, now time.Time) bool {
	x := m.detours.sessions[d.via()]
	return within(x.at, now, sessionCounts) && x.queue().Seconds() >= linePart*m.detours.line.least.Seconds()
}

// beginsBehindLine reports whether a detour begins as a backup, because the line was the bottleneck lately.
func (m *Manager) beginsBehindLine(t turn, d *Detour) bool {
	l := &m.detours.line
	if _, ok := t.rule.Policy.(DetourPolicy); !ok || !m.cfg.ByWorth || d.Kind.own() || t.kind == measure.Messages || t.tryouts != nil {
		return false
	}
	return within(l.proven, t.now, provenLasts) && !within(l.elsewhere[prefixOf(t.server.Addr())], t.now, provenLasts) &&
		t.has(func(s *subflow) bool { return s.direct && s.up && !s.backup && s.backoff == 0 })
}

// carryBesideLine has detours carry that began as backups, if the direct path of the connection, which has bulk traffic, has another
// bottleneck than the line. It reports whether there were any.
func (m *Manager) carryBesideLine(t turn, line bool) bool {
	if !t.has((*subflow).isBehindLine) {
		return false
	}
	l, x := &m.detours.line, &t.tryouts.omissions.line
	switch {
	case line:
		l.proven, x.free = t.now, time.Time{}
		return false
	case !m.isFree(t):
		x.free = time.Time{}
	case x.free.IsZero():
		x.free = t.now
	}
	patience, unseen := otherFirst, signsWithin
	if !x.last.IsZero() {
		patience, unseen = otherAfter, signsLast
	}
	other := !x.free.IsZero() && t.now.Sub(x.free) >= patience
	if !other && (m.usesLine(t.now) || t.now.Sub(later(t.tryouts.began, x.last)) < unseen) {
		return false
	}
	l.isNot(t)
	return t.leaveLine()
}

func (s *subflow) isBehindLine() bool { return s.isAside(behindLine) }

// isFree reports whether the direct path is limited while the line has no queue and does not carry what it can. A line that is just
// used up has no queue for seconds.
func (m *Manager) isFree(t turn) bool {
	measured := false
	for _, x := range m.detours.sessions {
		measured = measured || within(x.at, t.now, sessionCounts)
	}
	if !measured || m.lineOf(t.now).least >= lineQueue {
		return false
	}
	return t.has(func(s *subflow) bool { return s.direct && t.presses(s) }) && !m.usesLine(t.now)
}

// usesLine reports whether this host's connections get about as much as when the line was the bottleneck.
func (m *Manager) usesLine(now time.Time) bool {
	l := &m.detours.line
	if !l.carriedAt.Equal(now) { // else another connection has just asked
		l.carried, l.carriedAt = m.carriedNow(now), now
	}
	return l.carried >= lineUsed*l.rate
}

// carriedNow returns the bits a second that this host's connections get.
func (m *Manager) carriedNow(now time.Time) (sum float64) {
	for _, c := range m.conns.watched {
		for _, s := range c.subflows {
			if s.up && s.habits != nil && within(s.at, now, closeGap) {
				sum += max(s.habits.goodput.Rates(now))
			}
		}
	}
	return sum
}

// leaveLine has detours carry that began as backups. It reports whether there were any.
func (t turn) leaveLine() bool { return t.carryAgainWhere((*subflow).isBehindLine) }

// isNot records that the line is not the bottleneck of the turn's connection.
func (l *line) isNot(t turn) {
	if l.elsewhere == nil {
		l.elsewhere = make(map[netip.Prefix]time.Time)
	}
	if len(l.elsewhere) < mostElsewhere {
		l.elsewhere[prefixOf(t.server.Addr())] = t.now
	}
}

// forget drops what is too old.
func (l *line) forget(now time.Time) {
	maps.DeleteFunc(l.elsewhere, func(_ netip.Prefix, at time.Time) bool { return !within(at, now, provenLasts) })
}

// asksSessions has the sessions be measured often while the connection's detours are young, or while there are signs of a full line that
// are not certain.
func (m *Manager) asksSessions(t turn, line bool) {
	agrees := func(a measure.Agreement) bool { return a.Begins(t.now, agreesMost) }
	line = line || !m.detours.line.oneQueue(t.now) && slices.ContainsFunc(m.detours.line.together[:], agrees)
	wants := func(s *subflow) bool {
		if s.isBehindLine() {
			return t.now.Sub(t.tryouts.began) < asksFor
		}
		return s.up && !s.backup && s.detour != nil && (line || t.now.Sub(later(s.since, s.told.at)) < asksFor)
	}
	if t.has(wants) {
		m.detours.line.wanted = t.now.Add(lineGap)
	}
}

// MeasuresSessions reports whether the sessions with all waypoints are to be measured now, with a packet each. It is asked as often as
// connections are sampled closely.
func (m *Manager) MeasuresSessions(now time.Time) bool {
	l := &m.detours.line
	if now.After(l.wanted) || within(l.asked, now, asksEvery-1) {
		return false
	}
	l.asked = now
	return true
}

// lineSigns is a series of signs that a connection fills this host's line.
type lineSigns struct {
	from  reading   // what the host's connections had carried at the first
	last  time.Time // zero: there were none
	free  time.Time // since when the direct path has another bottleneck; zero: it is not known to have
	until time.Time // they are not believed
	times int       // how often they proved wrong
}

// take adds one sample. total is what the connections carried.
func (x *lineSigns) take(full bool, total uint64, now time.Time) {
	switch {
	case full && (!within(x.last, now, lineGap) || total < x.from.bytes):
		x.from, x.last = reading{now, total}, now
	case full:
		x.last = now
	}
}

// rate returns the bits a second since the first sign, and the time over which they were measured.
func (x *lineSigns) rate(total uint64, now time.Time) (rate float64, over time.Duration) {
	return x.from.rate(total, now)
}

// refute records that the line was not the bottleneck.
func (x *lineSigns) refute(now time.Time) {
	x.until = now.Add(min(doubtsFor<<min(x.times, 10), challengeGapMost))
	x.times++
	x.last = time.Time{}
}

// isRecent reports whether there was a sign a moment ago.
func (x *lineSigns) isRecent(now time.Time) bool { return within(x.last, now, lineRepairs) }

// lasts reports whether there was a sign lately.
func (x *lineSigns) lasts(now time.Time) bool { return within(x.last, now, lineLasts) }
