package path

import (
	"errors"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file ends a subflow on which messages are stuck. A detour that is called up (stall.go) carries only what is sent from
// then on. Linux sends the data that is stuck on a dead path again over another only if that one has nothing else under way,
// or after several retransmission timers, which take about a second. When the dead path's subflow ends, Linux sends the data
// again at once (docs/kernel-behaviour.md). So a subflow that carries messages ends if another carries, and either
//
//   - the answer to several segments that this host sent over it is overdue, because one alone may just be lost, and
//     another subflow or a session was heard meanwhile, because otherwise this host's own link may pause, or
//   - it was silent when the connection stalled, and other subflows have brought data since that comes after what is
//     missing.
//
// To notice this in time, such a connection is sampled again before the next round of close samples (lookSoon), and the
// sessions are measured.
//
// If the path works after all, its end costs little: a direct path joins again at once, and a detour after a moment. Each
// end doubles the time until the connection may end a subflow again.

const (
	// overdueLeast is the time without an answer after which it is overdue, at least overdueTrips round trips.
	overdueLeast = 150 * time.Millisecond
	overdueTrips = 4
	// overdueSegments is the number of segments without an answer that show more than a single loss.
	overdueSegments = 3
	// quietLeast is the time without an answer, at least quietTrips round trips, from which the sessions are measured. It is
	// shorter than overdueLeast because QUIC may acknowledge a ping 25 ms late.
	quietLeast = 50 * time.Millisecond
	quietTrips = 2
	// looksEvery is the time between two samples while it does not show yet whether a stall is real.
	looksEvery = 20 * time.Millisecond
	// looksFor is the time without an answer up to which a subflow is sampled that often. After that, rounds are enough: this
	// host may be cut off for long.
	looksFor = 2 * time.Second
)

var errOverdue = errors.New("messages over it were not answered")

// overdueAt returns when the answer to what was sent over the subflow is overdue, or zero if all is answered.
func (s *subflow) overdueAt() time.Time {
	if s.waiting.IsZero() {
		return time.Time{}
	}
	return later(s.lastAnswer().Add(max(overdueLeast, overdueTrips*s.usualTrip())), s.waiting.Add(stallTrips*s.usualTrip()))
}

// usualTrip returns the round trip that an answer usually takes.
func (s *subflow) usualTrip() time.Duration { return max(s.minRTT, s.rtt) }

// isOverdue reports whether the answer to several segments, or to one that was sent again, is overdue.
func (t turn) isOverdue(s *subflow) bool {
	at := s.overdueAt()
	return !at.IsZero() && !t.now.Before(at) && (s.unacked >= overdueSegments || s.backoff > 0)
}

// isDead reports whether the subflow carries and messages are stuck on it, by the two signs above.
func (w weighing) isDead(s *subflow) bool {
	return w.ours(s) && !s.backup && s.measuredAt(w.now) &&
		(w.isOverdue(s) && w.heardBesides(s) || w.inDoubt(s) && w.holdsUp(s, true, w.now))
}

// heardBesides reports whether another subflow or a session was heard when the answer over s should have come. So this host
// is not cut off.
func (w weighing) heardBesides(s *subflow) bool {
	should := s.waiting.Add(s.usualTrip())
	return w.detours.sessions.answeredSince(should, w.now) || w.has(func(x *subflow) bool {
		return x != s && w.isLive(x) && x.at.Equal(w.now) && x.lastAnswer().After(should)
	})
}

// endDead ends the subflows on which messages are stuck. It reports whether there were any.
func (w weighing) endDead() bool {
	a := &w.attention.stalls
	if w.kind != measure.Messages || w.now.Before(a.deaths.at) || w.halfClosed { // then nothing could join again
		return false
	}
	dead := w.where(func(s *subflow) bool { return w.isDead(s) && (s.detour != nil || w.places.acceptsDirect(w.turn, s)) })
	carries := w.has(func(s *subflow) bool {
		return w.ours(s) && w.works(s) && !s.backup && !s.distrusted() && !w.isDead(s)
	})
	if len(dead) == 0 || !carries {
		return false
	}
	a.deaths.failed(0, w.now)
	a.calm, a.times = time.Time{}, 0 // the stall was real
	w.giveUp(errOverdue, dead...)
	for _, s := range dead {
		if s.id == 0 {
			w.removals.owe(s)
			w.firstEnded = true
		}
		if s == w.attention.carrier { // messages that return to it soon do not follow paths that flap
			w.attention.carrier, w.attention.changes = nil, max(0, w.attention.changes-1)
		}
	}
	return true
}

// lookSoon plans the next sample between rounds of a connection that carries messages: when an answer or data becomes
// overdue, or soon if a stall is not decided.
func (m *Manager) lookSoon(t turn) {
	a := t.attention
	if a == nil {
		return
	}
	a.look = time.Time{}
	if t.adopted || t.kind != measure.Messages || m.conns.slots != nil { // with slots, not even a round has time for all connections
		return
	}
	at := func(then time.Time) {
		if then.After(t.now) && (a.look.IsZero() || then.Before(a.look)) {
			a.look = then
		}
	}
	undecided := t.isStalled()
	for _, s := range t.carriers() {
		at(s.overdueAt())
		if !s.waiting.IsZero() && t.now.Sub(s.waiting) < looksFor && s.silent() >= max(quietLeast, quietTrips*s.usualTrip()) {
			at(later(t.now.Add(looksEvery), s.waiting.Add(s.usualTrip()))) // a message of just now is answered by then
		}
		if s.measuredAt(t.now) {
			at(t.lateAt(s))
		}
		undecided = undecided || t.isOverdue(s) && t.now.Sub(a.stalls.calledUp) < asideWaits
	}
	if undecided {
		at(t.now.Add(looksEvery))
	}
	if due := t.due.Due(); !a.look.IsZero() && (due.IsZero() || a.look.Before(due)) {
		m.conns.due.Set(&t.due, a.look)
	}
}

// lookNow requests the sample that was planned, unless a round that came late has just brought it.
func (t turn) lookNow() {
	if t.attention == nil || t.attention.look.IsZero() || t.now.Before(t.attention.look) {
		return
	}
	t.attention.look = time.Time{}
	if !t.has(func(s *subflow) bool { return s.up && s.at.Equal(t.now) }) {
		t.out.do(Watch{t.token, t.ends(nil)})
	}
}
