package path

import (
	"errors"
	"net/netip"
	"slices"
	"time"
)

// This file decides what the end of a subflow says about its detour, its server or the direct path.

// verdictDelay is the time between the end of a subflow and its judgement. When a connection closes, its subflows may
// close before it.
const verdictDelay = 250 * time.Millisecond

var (
	errNoAnswer  = errors.New("the join was not answered")
	errNotJoined = errors.New("the join was not accepted")
	errNotKept   = errors.New("the server closed it at once")
)

// judge judges subflows that ended verdictDelay ago while the connection lives on.
func (m *Manager) judge(t turn) {
	t.ended = slices.DeleteFunc(t.ended, func(e ended) bool {
		if t.now.Before(e.judge) {
			return false
		}
		m.judgeOne(t, &e)
		return true
	})
}

func (m *Manager) judgeOne(t turn, e *ended) {
	if m.samples.corrupted(e) {
		e.err = errCorrupt
	}
	t.departsAtEnd(e)
	orphan := e.up && e.adrift
	t.releaseID(e, orphan)
	t.removals.doubt(e.subflow)
	if e.refusedDirect() && (!e.full() || !t.removals.unsettled()) { // otherwise a place may become free
		m.places.refusedDirect(t)
	}
	if e.full() {
		for _, waypoint := range m.places.closed(t, e) {
			m.detours.history.untried(waypoint, t.server)
		}
		if e.detour != nil && t.beside(func(s *subflow) bool { return s.up }) == 0 {
			// If all go through one waypoint, that may be at fault, so nothing is concluded about the server.
			m.detours.failures.add(e.detour, t.server, errNotKept, e.since, e.lived, t.now)
		}
		t.room.failed(0, t.now)
		t.removals.repeat()
		return
	}
	if e.up {
		t.room = retry{} // its place is free
	}
	switch {
	case orphan:
	case e.direct:
		t.direct.failed(e.lived, t.now)
		if latest := t.now.Add(muteRests - joinTimeout); t.firstEnded && t.direct.at.After(latest) {
			t.direct.at = latest // so that it is tried as often as a mute path that stays is probed
		}
	case e.detour != nil:
		m.woken = m.detours.failed(t, e) || m.woken
		switch {
		case errors.Is(e.err, errCorrupt):
			m.recordFault(e.detour, t.server, &corrupts, e.since, t.now)
		case errors.Is(e.err, errReported):
			m.recordFault(e.detour, t.server, &reported, e.since, t.now)
		case errors.Is(e.err, errNoAnswer) && m.showsSilence(t, e):
			m.countSilence(e.detour, t.server, e.since, t.now)
		}
	}
}

// releaseID makes the address id of an ended subflow available again. If the peer may not know of the end, it is
// told.
func (t turn) releaseID(e *ended, orphan bool) {
	switch {
	case e.id == 0 || !t.ownsID(e.subflow):
	case orphan:
		t.removals.owe(e.subflow)
		t.dropped = t.now
	default:
		t.out.do(RemoveAddr{Token: t.token, LocalID: e.id}) // else Linux would not accept the id again
		t.removals.last = t.now
	}
}

// departsAtEnd records that the connection left the path of a subflow that ended by itself, and why. If the subflow was to
// end anyway, that reason counts. It records nothing if the server had no place for the subflow, which was never used then.
func (t turn) departsAtEnd(e *ended) {
	why, planned := t.takePlanned(e.subflow)
	switch {
	case e.full():
		return
	case planned && e.leaving:
	case e.adrift:
		why = SubflowReason{Cause: CauseNoAddress}
	case errors.Is(e.err, errCorrupt) || errors.Is(e.err, errReported):
		why = SubflowReason{Cause: CauseHarm, Numbers: &Numbers{Err: e.err}}
	default:
		why = SubflowReason{Cause: CauseClosed, Numbers: &Numbers{Err: e.err}}
	}
	t.departs(e.subflow, true, why, e.since.Add(e.lived))
}

// giveUp ends subflows that do not work, because of err, and records failures of their detours.
func (w weighing) giveUp(err error, gone ...*subflow) {
	for _, s := range gone {
		why := SubflowReason{Cause: CauseStalled, Numbers: &Numbers{Silent: w.now.Sub(s.moved)}}
		switch {
		case errors.Is(err, errSilent):
			why = SubflowReason{Cause: CauseSilent, Numbers: &Numbers{Silent: s.silent(), Unanswered: int(s.unanswered)}}
		case errors.Is(err, errOverdue):
			why = SubflowReason{Cause: CauseOverdue, Numbers: &Numbers{Silent: s.silent()}}
		}
		w.planEnd(s, why)
	}
	w.takeBack(gone...)
	for _, s := range gone {
		if s.detour != nil {
			w.detours.failures.add(s.detour, w.server, err, s.since, w.now.Sub(s.since), w.now)
		}
	}
}

// endHoles gives up the subflows through which nothing arrives.
func (m *Manager) endHoles(t turn) {
	holes := t.suspect()
	if len(holes) == 0 {
		return
	}
	m.weighing(t).giveUp(errSilent, holes...)
	for _, s := range holes {
		m.recordSilence(s.detour, t.server, s.since, t.now)
	}
	m.step(t)
}

// recordFault suspends detours like d after a subflow that began at began suffered fault f. If the fault forbids all
// use of them, the subflows over them end as soon as their connections have others.
func (m *Manager) recordFault(d *Detour, server netip.AddrPort, f *fault, began, now time.Time) {
	who, until, ok := m.detours.suspensions.add(d, server, f, began, now)
	if !ok {
		return
	}
	m.out.do(Blame{Waypoint: d.Waypoint, Kind: d.Kind, AllKinds: f.allKinds, Server: who.server, Err: f.err, Fix: f.fix, Until: until})
	if !f.leave {
		return
	}
	for _, c := range m.conns.to(who.server) {
		if c.leave(who.covers, SubflowReason{Cause: CauseHarm, Numbers: &Numbers{Err: f.err}}) {
			m.conns.stepAgain(c.token)
		}
	}
}
