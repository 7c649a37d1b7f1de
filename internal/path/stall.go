package path

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file notices that the subflows that carry a connection stall, and lets those that were set aside carry again.
//
// A sender has a retransmission timer, which is certain. A receiver notices only that no data comes, and the server
// may just pause. So after a stall without confirmation, silence is not believed for a while (calm). The subflows
// that carried are probed (silence.go). If their probes stay unanswered while something arrives on the subflows that
// were called up, the stall is confirmed and the calm ends. If the subflows that carried are heard again, there was
// no stall. Then detours stand by again that stood by because they add nothing, or since they began.

const (
	// asideWaits is the least time for which a stalled connection uses all its subflows.
	asideWaits = 2 * time.Second
	// stallLeast is the time without an answer to sent data from which a subflow is silent, at least stallTrips round
	// trips.
	stallLeast = 150 * time.Millisecond
	// stallHeard is the time without data, where data arrived steadily or was asked for, from which a subflow is
	// silent. It is at least stallGaps times the longest gap and stallTrips round trips.
	stallHeard = 300 * time.Millisecond
	// stallMessages is the same for messages.
	stallMessages = 200 * time.Millisecond
	stallTrips    = 3
	stallGaps     = 3
	// steadyGap is the longest gap between data up to which data arrives steadily.
	steadyGap = 150 * time.Millisecond
	// calmFor is the time for which silence is not believed after a stall without confirmation. It doubles each time,
	// up to longestCalm.
	calmFor     = 10 * time.Second
	longestCalm = 10 * time.Minute
)

// stalls holds the state of a connection's stalls.
type stalls struct {
	calledUp time.Time  // when those set aside were last called up
	silent   []*subflow // those that carried then, until it shows whether they work
	calm     time.Time  // until then, silence without an answer or a timer is no stall
	times    int        // stalls in a row without confirmation
	behind   []idled    // detours that were called up, to stand by again if there was no stall
	deaths   retry      // ends of subflows on which messages were stuck (dead.go)
}

// idled is a detour that stood by, and the reason.
type idled struct {
	*subflow
	why aside
}

// carriers returns the subflows that carry.
func (t turn) carriers() []*subflow {
	return t.where(func(s *subflow) bool { return s.up && !s.backup && t.host.hasSource(s) })
}

// carriersStall reports whether all subflows that carry have become silent in the middle of traffic, while others are
// set aside.
func (w weighing) carriersStall() bool {
	if !w.has(func(s *subflow) bool { return (s.setAside() && !s.isSpent() || s.standby) && w.ours(s) }) {
		return false
	}
	carriers := w.carriers()
	return len(carriers) > 0 && !slices.ContainsFunc(carriers, func(s *subflow) bool { return !s.measuredAt(w.now) || !w.silentNow(s) })
}

// surelySilent reports whether a subflow's timer or unanswered probes prove that nothing gets through.
func (s *subflow) surelySilent() bool {
	return s.backoff > 0 || s.suspected() && s.unansweredFor(demoteUnanswered)
}

// silentNow reports whether a subflow that carries has become silent: sent data or probes have no answer, or data
// does not come that arrived steadily or was asked for.
func (w weighing) silentNow(s *subflow) bool {
	switch {
	case s.surelySilent():
		return true
	case w.now.Before(w.attention.stalls.calm):
		return false
	case !s.waiting.IsZero() && w.now.Sub(s.waiting) >= max(stallLeast, stallTrips*s.minRTT), w.kind == measure.Messages && w.isOverdue(s):
		return true
	}
	late, steady, ok := w.lateAfter(s)
	if !ok || w.drains() {
		return false
	}
	asked := s.habits.step.asked < s.habits.step.heard
	return asked && s.habits.step.asked > late || steady && s.dry() > late
}

// lateAfter returns the time without data after which data counts as late, if it was asked for or arrived steadily. steady
// reports whether it arrived steadily. ok is false if too little is known of the subflow.
func (t turn) lateAfter(s *subflow) (late time.Duration, steady, ok bool) {
	gap, ok := s.usualGap()
	least := stallHeard
	if t.kind == measure.Messages {
		least = stallMessages
	}
	return max(least, stallGaps*gap, stallTrips*s.minRTT), gap <= steadyGap, ok
}

// lateAt returns when the next data will count as late, or zero if data did not arrive steadily or silence is not believed.
func (t turn) lateAt(s *subflow) time.Time {
	late, steady, ok := t.lateAfter(s)
	if !ok || !steady || t.now.Before(t.attention.stalls.calm) {
		return time.Time{}
	}
	return s.lastData().Add(late + time.Millisecond)
}

// callUp lets all subflows that were set aside carry again, because the others stall.
func (w weighing) callUp() {
	a := &w.attention.stalls
	a.calledUp, a.silent, a.behind = w.now, nil, nil
	if carriers := w.carriers(); !slices.ContainsFunc(carriers, (*subflow).surelySilent) {
		a.calm = w.now.Add(doubled(calmFor, a.times, longestCalm))
		a.times++
		a.silent = carriers
	}
	for _, s := range w.subflows {
		if !s.setAside() || s.isSpent() || !w.ours(s) {
			continue
		}
		if len(a.silent) > 0 && (s.beganAside() || s.addsNothing()) {
			a.behind = append(a.behind, idled{s, *s.aside})
		}
		w.carryAgain(s)
	}
}

// callUpSlotless lets the subflows that were set aside carry again if nothing gets through over those that carry. It is for a
// connection without a slot (closely.go), which is not measured, so only timers and probes count. A single retransmission
// proves nothing, and it would take long to set a lossy subflow aside again.
func (t turn) callUpSlotless() {
	carriers := t.carriers()
	seemsToWork := func(s *subflow) bool {
		return s.backoff < stuckBackoff && (!s.suspected() || !s.unansweredFor(demoteUnanswered))
	}
	if len(carriers) > 0 && !slices.ContainsFunc(carriers, seemsToWork) {
		t.carryAgainWhere(func(s *subflow) bool { return s.setAside() && !s.isSpent() && t.ours(s) })
	}
}

// isStalled reports whether the connection was called up a moment ago, and it does not show yet whether it really
// stalled.
func (t turn) isStalled() bool {
	a := &t.attention.stalls
	return len(a.silent) > 0 && t.now.Sub(a.calledUp) < asideWaits
}

// stayBehind lets detours stand by again that were called up without need.
func (w weighing) stayBehind() {
	for _, s := range w.attention.stalls.behind {
		if slices.Contains(w.subflows, s.subflow) && w.ours(s.subflow) && !s.setAside() && w.carriesWithout(s.subflow) {
			*s.aside = s.why
			w.setBackup(s.subflow, true)
		}
	}
	w.attention.stalls.behind = nil
	if w.tryouts != nil && w.tryouts.omissions.trials() {
		w.tryouts.omissions.restart(w.now)
	}
}

// inDoubt reports whether the subflow carried when the connection stalled, and it does not show yet whether the
// subflow works.
func (t turn) inDoubt(s *subflow) bool {
	return t.attention != nil && slices.Contains(t.attention.stalls.silent, s)
}

// confirmStall finds out whether the last stall was real. It was not if those that carried are heard again. If it was
// real, the calm ends.
func (w weighing) confirmStall() {
	a := &w.attention.stalls
	a.silent = slices.DeleteFunc(a.silent, func(s *subflow) bool { return !slices.Contains(w.subflows, s) })
	if len(a.silent) == 0 {
		return
	}
	if w.has(func(s *subflow) bool { return slices.Contains(a.silent, s) && s.lastAnswer().After(a.calledUp) }) {
		a.silent = nil
		w.stayBehind()
		return
	}
	works := w.has(func(s *subflow) bool {
		return w.ours(s) && !slices.Contains(a.silent, s) && s.lastAnswer().After(a.calledUp)
	})
	if works && !slices.ContainsFunc(a.silent, func(s *subflow) bool { return !s.surelySilent() }) {
		a.silent, a.calm, a.times = nil, time.Time{}, 0
	}
}
