package path

import (
	"net/netip"
	"slices"
	"time"
)

// This file finds out whether this host's own line is the bottleneck. Then no detour can add anything to the direct path. The
// sessions with waypoints pass the line, too, and carry next to nothing themselves. So if the packets of sessions wait in a queue
// about as long as the direct path's, although nothing else goes through their waypoints, they wait in the same queue. Where all
// waypoints carry, those could have queues of their own. Then the packets of two sessions that are sent at the same time must wait
// equally long, however the queue changes (sessions.go).
//
// Other traffic of this host may fill the line as well. So the finding is only a reason to do without detours for a moment, and to
// compare (omit.go). What that showed is remembered (behindline.go).

const (
	// A queue of lineQueue is one of the line, if packets wait there for at least linePart of the time that the direct path's do.
	lineQueue = 15 * time.Millisecond
	linePart  = 0.5
	// Sessions with two waypoints show a queue at once, and those with one after they have done so for lineWaits.
	lineWaits = 1500 * time.Millisecond
	// A full line that lost many packets at once is full again after lineRepairs, and shows it.
	lineRepairs = 4 * time.Second
	// Signs of a full line that are no more than lineGap apart are one series.
	lineGap = time.Second
	// If the connections get less without detours, signs are not believed for doubtsFor, which doubles each time.
	doubtsFor = 30 * time.Second
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

	carried   float64   // what this host's connections get, in bits a second
	carriedAt time.Time // when that was brought up to date

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
		if l.witness == "" && m.detours.compared.oneQueue(now) {
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
