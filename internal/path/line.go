package path

import (
	"net/netip"
	"time"
)

// This file finds out whether this host's own line is the bottleneck. If it is, no detour can add anything to the
// direct path. The sessions with waypoints also pass the line, and carry almost nothing themselves. So if their
// packets wait about as long as the direct path's, although nothing else goes through their waypoints, all wait in
// the queue of the line.
//
// If all waypoints carry data, their sessions' packets may wait in queues of the waypoints. Then two sessions show
// the line's queue if packets of both that are sent at the same time wait equally long, however the queue changes
// (sessions.go).
//
// Other traffic of this host may fill the line as well. So the finding is only a reason to omit the detours and to
// compare (omit.go). The result is remembered (behindline.go).

const (
	// lineQueue is the least queue of a full line.
	lineQueue = 15 * time.Millisecond
	// linePart is the share of the direct path's queue that the sessions' packets must wait at least.
	linePart = 0.5
	// lineWaits is the time for which the sessions with a single waypoint must have shown the queue. Sessions with two
	// waypoints show it at once.
	lineWaits = 1500 * time.Millisecond
	// lineRepairs is the time in which a full line that lost many packets at once is full again.
	lineRepairs = 4 * time.Second
	// lineGap is the longest time between two signs of a full line in one series.
	lineGap = time.Second
	// doubtsFor is the time for which signs are not believed after the connections got less without detours. It
	// doubles each time.
	doubtsFor = 30 * time.Second
	// lineLasts is the time after the last sign of a full line for which no waypoint is tried out.
	lineLasts = 20 * time.Second
)

// line describes the queue of this host's line, as idle sessions show it.
type line struct {
	least   time.Duration // shortest queue of the sessions; zero: not measured
	witness string        // a waypoint whose session was measured
	several bool          // sessions with other waypoints were, too
	since   time.Time     // when least reached lineQueue; zero: it is below
	at      time.Time     // when the fields above were brought up to date

	carried   float64   // rate of this host's connections, in bits a second
	carriedAt time.Time // when that was measured

	proven    time.Time                  // when the line last proved to be the bottleneck
	rate      float64                    // rate of bulk traffic then, in bits a second
	elsewhere map[netip.Prefix]time.Time // networks of servers towards which it was not, and when
}

// lineOf returns the queue of this host's line.
func (w weighing) lineOf() *line {
	l := &w.detours.line
	if !l.at.Equal(w.now) {
		l.look(&w.detours.sessions, func(waypoint string) bool { return w.conns.carryThrough(waypoint, w.now) }, w.now)
	}
	return l
}

// look brings the queue up to date by what the sessions show. carries reports whether data goes through a waypoint.
func (l *line) look(s *sessions, carries func(waypoint string) bool, now time.Time) {
	l.at, l.least, l.witness, l.several = now, 0, "", false
	if s.any(now, func(x sessionWorth) bool { return x.queue() >= lineQueue }) {
		for v, x := range s.worth {
			if !x.counts(now) || carries(v.waypoint) {
				continue
			}
			if queue := x.queue(); l.witness == "" || queue < l.least {
				l.least = queue
			}
			l.several = l.several || l.witness != "" && l.witness != v.waypoint
			l.witness = v.waypoint
		}
		least := s.compare(now)
		if l.witness == "" && s.inOneQueue(now) {
			l.least, l.several = least, true
		}
	}
	if l.least < lineQueue {
		l.since = time.Time{}
	} else if l.since.IsZero() {
		l.since = now
	}
}

// fillsLine reports whether the direct path of a connection that tries out waypoints waits in the queue of this
// host's line.
func (w weighing) fillsLine() bool {
	if w.tryouts.omissions.line.until.After(w.now) {
		return false
	}
	direct := w.find(func(s *subflow) bool { return s.direct && s.up && !s.backup && s.measuredAt(w.now) })
	if direct == nil {
		return false
	}
	l, queue := w.lineOf(), direct.queue()
	return l.least >= lineQueue && queue >= lineQueue && l.least.Seconds() >= linePart*queue.Seconds() && (l.several || w.now.Sub(l.since) >= lineWaits)
}

// passesLine reports whether the session with a detour's waypoint waits about as long as those that show the line's
// queue.
func (k *detours) passesLine(d *Detour, now time.Time) bool {
	x := k.sessions.worth[viaOf(d)]
	return x.counts(now) && x.queue().Seconds() >= linePart*k.line.least.Seconds()
}

// lineSigns is the state of a connection that may fill this host's line, and the present series of signs for it.
type lineSigns struct {
	from  reading   // what the host's bulk connections had carried at the first sign
	last  time.Time // the last sign; zero: none
	free  time.Time // when the direct path got another bottleneck; zero: it is not known to have one
	until time.Time // until then, signs are not believed
	times int       // number of times that they proved wrong
}

// take adds one sample. total is the number of bytes that the bulk connections carried.
func (x *lineSigns) take(full bool, total uint64, now time.Time) {
	switch {
	case full && (!within(x.last, now, lineGap) || total < x.from.bytes):
		x.from, x.last = reading{now, total}, now
	case full:
		x.last = now
	}
}

// rate returns the rate since the first sign in bits a second, and the time over which it was measured.
func (x *lineSigns) rate(total uint64, now time.Time) (rate float64, over time.Duration) {
	return x.from.rate(total, now)
}

// refute records that the signs were wrong.
func (x *lineSigns) refute(now time.Time) {
	x.until = now.Add(doubled(doubtsFor, x.times, challengeGapMost))
	x.times++
	x.last = time.Time{}
}

// isRecent reports whether there was a sign within lineRepairs.
func (x *lineSigns) isRecent(now time.Time) bool { return within(x.last, now, lineRepairs) }

// lasts reports whether there was a sign within lineLasts.
func (x *lineSigns) lasts(now time.Time) bool { return within(x.last, now, lineLasts) }
