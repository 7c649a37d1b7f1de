package path

import (
	"slices"
	"time"
)

// This file notices when the subflows that carry a connection stall, and has those that were set aside carry
// again.
//
// A sender has a retransmission timer, which is sure. A receiver only notices that no data comes, which may be a
// pause of the server. So after a stall that nothing confirms, silence is not believed for a while: calm. The subflows
// that carried are probed (silence.go). If the probes stay unanswered, and something came on the subflows that
// were called up, the stall is confirmed, which ends the calm. If the subflows that carried are heard again, there was no stall, and
// detours that stood by because this host's line is the bottleneck do so again.

const (
	// asideWaits is the shortest time for which a stalled connection keeps using all its subflows.
	asideWaits  = 2 * time.Second
	stallLeast  = 150 * time.Millisecond // of silence after sent data, or three round trips
	stallHeard  = 300 * time.Millisecond // of silence where data arrived steadily, or three times the longest gap
	stallTrips  = 3
	stallGaps   = 3
	steadyGap   = 150 * time.Millisecond // a longest gap up to which data arrives steadily
	calmFor     = 10 * time.Second       // after a stall that nothing confirms, then twice as long each time
	longestCalm = 10 * time.Minute
)

// stalls has the state of a connection's stalls.
type stalls struct {
	calledUp time.Time  // when those set aside were last needed
	silent   []*subflow // those that carried then, if nothing has shown yet whether they work
	calm     time.Time  // data that does not arrive is no stall before
	times    int        // stalls that nothing confirmed, in a row
	behind   []idled    // detours that stood by then because of the line
}

// idled is a detour that stood by, and why.
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
func (t turn) carriersStall() bool {
	if !t.has(func(s *subflow) bool { return (s.setAside() && !s.isSpent() || s.standby) && t.ours(s) }) {
		return false
	}
	carriers := t.carriers()
	return len(carriers) > 0 && !slices.ContainsFunc(carriers, func(s *subflow) bool { return !s.measuredAt(t.now) || !t.silentNow(s) })
}

// surelySilent reports whether the subflow's timer or unanswered probes show that nothing gets through.
func (s *subflow) surelySilent() bool {
	return s.backoff > 0 || s.suspected() && s.unansweredFor(demoteUnanswered)
}

// silentNow reports whether a subflow that carries has become silent: sent data or probes have no answer, or what
// arrived steadily or was asked for does not come.
func (t turn) silentNow(s *subflow) bool {
	switch {
	case s.surelySilent():
		return true
	case t.now.Before(t.attention.stalls.calm):
		return false
	case !s.waiting.IsZero() && t.now.Sub(s.waiting) >= max(stallLeast, stallTrips*s.minRTT):
		return true
	}
	gap, ok := s.usualGap()
	if !ok {
		return false
	}
	asked := s.habits.step.asked < s.habits.step.heard
	late := max(stallHeard, stallGaps*gap, stallTrips*s.minRTT)
	return asked && s.habits.step.asked > late || gap <= steadyGap && s.dry() > late
}

// callUp has all subflows that were set aside carry again, because the others stall.
func (t turn) callUp() {
	a := &t.attention.stalls
	a.calledUp, a.silent, a.behind, t.attention.challenger = t.now, nil, nil, nil
	if carriers := t.carriers(); !slices.ContainsFunc(carriers, (*subflow).surelySilent) {
		a.calm = t.now.Add(min(calmFor<<min(a.times, 10), longestCalm))
		a.times++
		a.silent = carriers
	}
	for _, s := range t.subflows {
		if !s.setAside() || s.isSpent() || !t.ours(s) {
			continue
		}
		if len(a.silent) > 0 && (s.isBehindLine() || s.addsNothing() && s.aside.why.Line) {
			a.behind = append(a.behind, idled{s, *s.aside})
		}
		t.carryAgain(s)
	}
}

// isStalled reports whether the connection perhaps stalls: what carried has been silent for a moment.
func (t turn) isStalled() bool {
	a := &t.attention.stalls
	return len(a.silent) > 0 && t.now.Sub(a.calledUp) < asideWaits
}

// stayBehind has detours stand by again that were called up in vain.
func (t turn) stayBehind() {
	for _, s := range t.attention.stalls.behind {
		if slices.Contains(t.subflows, s.subflow) && t.ours(s.subflow) && !s.setAside() && t.carriesWithout(s.subflow) {
			*s.aside = s.why
			t.setBackup(s.subflow, true)
		}
	}
	t.attention.stalls.behind = nil
	if t.tryouts != nil && t.tryouts.omissions.trials() {
		t.tryouts.omissions.restart(t.now)
	}
}

// inDoubt reports whether the subflow carried when the connection stalled, and nothing has shown yet whether it is to
// blame.
func (t turn) inDoubt(s *subflow) bool {
	return t.attention != nil && slices.Contains(t.attention.stalls.silent, s)
}

// confirmStall finds out whether the last stall was none: those that carried before are heard again. It ends
// the calm if it was one.
func (t turn) confirmStall() {
	a := &t.attention.stalls
	a.silent = slices.DeleteFunc(a.silent, func(s *subflow) bool { return !slices.Contains(t.subflows, s) })
	if len(a.silent) == 0 {
		return
	}
	if t.has(func(s *subflow) bool { return slices.Contains(a.silent, s) && s.lastAnswer().After(a.calledUp) }) {
		a.silent = nil
		t.stayBehind()
		return
	}
	works := t.has(func(s *subflow) bool {
		return t.ours(s) && !slices.Contains(a.silent, s) && s.lastAnswer().After(a.calledUp)
	})
	if works && !slices.ContainsFunc(a.silent, func(s *subflow) bool { return !s.surelySilent() }) {
		a.silent, a.calm, a.times = nil, time.Time{}, 0
	}
}
