package path

import (
	"math"
	"time"

	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file decides which subflows of a connection carry, by what was measured while data moved. A subflow that does
// more harm than good is set aside: it becomes a backup, which costs nothing and is there when the others fail.
//
//   - Loss. A path that loses too much is set aside if another loses much less (lossy.go). It is tried again after a
//     minute, later less and less often.
//   - Messages. The path with the shortest wait carries messages, and the others stand by (messages.go).
//     Bulk traffic uses all paths.
//   - Stalls. When the paths that carry become silent in the middle of traffic, those set aside carry again at once
//     (stall.go).
//
// The state of a connection that is sampled closely is in its attention. Of a connection that existed before this
// Manager, only the kind of traffic is found. Its subflows are left alone.

const (
	// muchLess is the factor by which a path must lose less than another to be preferred to it.
	muchLess = 2
	// learnsEvery is the time after which the history learns from a connection again.
	learnsEvery = time.Second
)

// attention is the state of a connection that is sampled closely.
type attention struct {
	traffic    measure.Traffic
	learned    time.Time     // when the history last learned from the connection
	challenger *subflow      // the subflow that has been better than carrier
	since      time.Time     // when it began to be better
	carrier    *subflow      // the subflow that carries messages
	took       time.Duration // a message's wait over carrier when that began to carry
	changes    int           // number of changes of carrier
	heard      time.Time     // when data last arrived
	look       time.Time     // when the connection is to be sampled before the next round; zero: it is not
	stalls     stalls
	peak       measure.Peak // the connection's highest rate
	kept       kept
	drew       time.Time // when a random number last decided about leaving a loaded waypoint

	comparedAt  time.Time // when the detours in use were last compared with others
	slowerSince time.Time // when one of them began to be much slower; zero: none is
	besides     *besides  // nil unless it has bulk traffic
}

// asideCause is the kind of reason for setting a subflow aside.
type asideCause uint8

const (
	// notAside means that the subflow is not set aside now.
	notAside asideCause = iota
	// lossy means that it lost too much (lossy.go).
	lossy
	// standsBy means that another subflow carries the messages.
	standsBy
	// spent means that a budget is used up (spend.go).
	spent
	// yieldsPlace means that it gives its place to a waypoint that is tried out (tryout.go).
	yieldsPlace
	// addsNothing means that it is omitted, or that the connections got as much without it (omit.go).
	addsNothing
	// behindLine means that it began as a backup, because this host's line was the bottleneck (behindline.go).
	behindLine
	// addedNothing means that it began as a backup, because earlier connections got as much without it (addednothing.go).
	addedNothing
	// surplus means that it is to end, because the connection has more subflows than its policy allows (surplus.go).
	surplus
)

// aside tells why a subflow is set aside. It is kept when the subflow carries again.
type aside struct {
	cause asideCause
	scope budget.Scope // of the budget that is used up, for spent
	since time.Time
	until time.Time // when it is tried again, for lossy and addsNothing
	times int       // how often it was lossy
	tried time.Time // when it was last tried again
	why   Verdict

	missed missed // for the direct path
}

// setAside reports whether the subflow is set aside: a backup although it works.
func (s *subflow) setAside() bool { return s.aside != nil && s.aside.cause != notAside }

// isAside reports whether the subflow is set aside for this cause.
func (s *subflow) isAside(cause asideCause) bool { return s.aside != nil && s.aside.cause == cause }

// putAside sets a subflow aside.
func (t turn) putAside(s *subflow, cause asideCause, why Verdict) {
	if s.aside == nil {
		s.aside = &aside{}
	}
	s.aside.cause, s.aside.since, s.aside.why = cause, t.now, why
	t.setBackup(s, true)
}

// weighing is a turn whose decisions also look at the detours and at other connections. Its methods decide which
// subflows of the connection carry, and which of its detours are exchanged. They return what changed, and the Manager
// steps the connection.
type weighing struct {
	turn
	byWorth bool
	detours *detours
	conns   *table
	places  *places
	views   *views
}

func (m *Manager) weighing(t turn) weighing {
	return weighing{t, m.cfg.ByWorth, &m.detours, &m.conns, &m.places, &m.views}
}

// weigh decides about a connection that was just sampled closely. It reports whether the connection needs a step.
func (w weighing) weigh() bool {
	if !w.byWorth || !w.open() || w.closing() {
		return false
	}
	moment := w.moment()
	if moment.Elapsed == 0 {
		return false
	}
	if w.attention == nil {
		w.attention = &attention{traffic: measure.Traffic{Kind: w.kind}}
	}
	w.attention.kept.take(moment.Elapsed, w.inOrder(), w.data.acked)
	moment.Backlogged = w.data.full && (moment.Limited || w.attention.kept.isMuch())
	w.timeAnswers(moment)
	if !w.kindSaid {
		w.kind = w.attention.traffic.Take(w.now, moment)
	}
	if w.adopted {
		return false
	}
	if w.now.Sub(w.attention.learned) >= learnsEvery {
		w.learn()
	}
	w.compare(moment)
	w.confirmStall()
	stalls := w.carriersStall()
	if stalls {
		w.callUp()
	}
	if w.endDead() || stalls {
		return true
	}
	changed := w.setLossyAside()
	changed = w.missDirect() || changed
	changed = w.setBurdensAside(moment) || changed
	changed = w.drawToLeave() || changed
	changed = w.flee() || trying{w}.tryOut() || w.exchangeSlower() || changed
	w.divide()
	return changed
}

// moment sums up what happened on the connection since the last samples.
func (w weighing) moment() (m measure.Moment) {
	m.Asked, m.Heard = math.MaxInt64, math.MaxInt64
	for _, s := range w.subflows {
		if !s.measuredAt(w.now) {
			continue
		}
		step := &s.habits.step
		m.Elapsed = max(m.Elapsed, step.elapsed)
		m.Received += step.received
		m.Acked += step.acked
		m.Flight = max(m.Flight, float64(step.received+step.acked)/max(1, step.elapsed.Seconds()/max(s.minRTT, time.Millisecond).Seconds()))
		m.Asked, m.Heard = min(m.Asked, step.asked), min(m.Heard, step.heard)
		m.Limited = m.Limited || step.limited
		m.Lossy = m.Lossy || step.lossy
		m.Queued, m.SurelyQueued = m.Queued || step.queued, m.SurelyQueued || step.surelyQueued
		if s.minRTT > 0 && (m.Trip == 0 || s.minRTT < m.Trip) {
			m.Trip = s.minRTT
		}
	}
	return m
}

// measuredAt reports whether the subflow was just sampled, in a series of close samples.
func (s *subflow) measuredAt(now time.Time) bool { return s.up && s.at.Equal(now) && s.habits != nil }

// ours reports whether the subflow is an established one on a known path, which may stay.
func (t turn) ours(s *subflow) bool {
	return t.isLive(s) && !s.foreign && (s.direct || s.detour != nil)
}

// waypoint returns the name of the waypoint, or "" for the direct path.
func (s *subflow) waypoint() string {
	if s.detour == nil {
		return ""
	}
	return s.detour.Waypoint
}

// loses returns the share of packets lost in the last seconds, in the worse direction. known is false if too few
// packets were seen.
func (s *subflow) loses(now time.Time) (p float64, known bool) {
	if s.habits == nil {
		return 0, false
	}
	in, knowsIn := s.habits.arrivals.Lost(now, s.minRTT, s.habits.step.trip)
	out, knowsOut := s.habits.sent.Lost(now)
	return max(in, out), knowsIn || knowsOut
}

// seemsToLose returns what loses would return if all packets that were overtaken had been lost.
func (s *subflow) seemsToLose(now time.Time) (p float64, known bool) {
	if s.habits == nil {
		return 0, false
	}
	in, knowsIn := s.habits.arrivals.Seems(now, s.habits.step.trip)
	out, knowsOut := s.habits.sent.Seems(now)
	return max(in, out), knowsIn || knowsOut
}

// learn passes the measurements to the history.
func (w weighing) learn() {
	w.attention.learned = w.now
	for _, s := range w.subflows {
		if w.ours(s) && s.measuredAt(w.now) && w.now.Sub(s.moved) < time.Second {
			w.detours.history.learn(s.waypoint(), w.server, w.found(s), w.now)
		}
	}
}

// divide decides by the kind of traffic which subflows carry.
func (w weighing) divide() {
	if w.now.Sub(w.attention.stalls.calledUp) < asideWaits {
		return
	}
	if w.kind == measure.Messages || w.attention.traffic.BeginsAsMessages() {
		w.gather()
		return
	}
	if w.kind == measure.Short && !w.attention.traffic.MovedMuch() {
		return // the kind is not known, so detours that are backups from the beginning (far.go) stay backups
	}
	w.carryAgainWhere(func(s *subflow) bool { return s.isAside(standsBy) })
}

// carryAgain ends that a subflow is set aside.
func (t turn) carryAgain(s *subflow) {
	s.aside.cause = notAside
	if s.backup && !s.doubts().demoted && !s.standby {
		t.setBackup(s, false)
	}
	if s.habits != nil {
		s.habits.acquit()
	}
}

// carryAgainWhere lets the subflows carry again for which is returns true. It reports whether there were any.
func (t turn) carryAgainWhere(is func(*subflow) bool) (found bool) {
	for _, s := range t.subflows {
		if is(s) {
			t.carryAgain(s)
			found = true
		}
	}
	return found
}

// keepCarrying lets subflows carry again if all that carried are gone: the direct one or, if it was not set aside,
// all.
func (t turn) keepCarrying() {
	if !t.has((*subflow).setAside) || t.has(func(s *subflow) bool { return t.isLive(s) && !s.backup }) {
		return
	}
	direct := t.has(func(s *subflow) bool { return s.direct && s.setAside() && t.ours(s) })
	for _, s := range t.subflows {
		if s.setAside() && t.ours(s) && (s.direct || !direct) {
			t.carryAgain(s)
		}
	}
}
