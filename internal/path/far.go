package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file keeps the first messages of a connection off a detour that is much longer than the direct path. Linux uses a
// subflow that is no backup as soon as it is fully established, but the kind of traffic is known only later. So a long detour
// becomes a backup when it is fully established, if little has moved by then. It carries again when much moves, or when the
// traffic turns out to be bulk (divide).

// fullyLater allows for jitter: the last exchange of the handshake may take that much longer than the first.
const fullyLater = 2 * time.Millisecond

// fullyUp returns when a subflow that this host opened is fully established: when the peer has answered the last
// segment of the handshake. Until then, it carries no data, and Linux refuses to change its priority.
func (s *subflow) fullyUp() time.Time { return s.since.Add(s.took + fullyLater) }

// mayBeFar reports whether a detour is to be compared with the direct path: it came up a moment ago and carries, and the kind
// of traffic is not known. A connection without a slot is left alone, because it is not noticed when much moves.
func (m *Manager) mayBeFar(t turn, s *subflow) bool {
	_, detours := t.rule.Policy.(policy.Detours)
	return m.cfg.ByWorth && detours && !t.adopted && !t.slotless && t.open() && t.kind == measure.Short && !t.kindSaid &&
		s.detour != nil && s.up && !s.backup && s.aside == nil && s.took > 0 && s.took < synAgain && t.now.Sub(s.since) <= s.takesPriorityAfter()
}

// measureYoung requests samples of the direct path and of detours that may be far, once these are fully established. It asks
// only once for each, because the kernel may have closed the subflow, and then the answer leads to another step.
func (m *Manager) measureYoung(t turn) {
	for _, s := range t.subflows {
		if s.asked || !m.mayBeFar(t, s) || t.now.Before(s.fullyUp()) {
			continue
		}
		s.asked = true
		if direct := t.directThatCarries(); direct != nil {
			t.out.do(Measure{t.token, direct.local, direct.remote})
			t.out.do(Measure{t.token, s.local, s.remote})
		}
	}
}

// directThatCarries returns the direct path if it carries and works, or nil.
func (t turn) directThatCarries() *subflow {
	return t.find(func(s *subflow) bool { return s.direct && t.ours(s) && !s.backup && t.works(s) })
}

// leaveFarBehind sets aside a detour that was just sampled, if it is much longer than the direct path. It reports whether it
// did.
func (m *Manager) leaveFarBehind(t turn, s *subflow) bool {
	if !m.mayBeFar(t, s) || t.now.Before(s.fullyUp()) {
		return false
	}
	direct := t.directThatCarries()
	if direct == nil || direct.minRTT == 0 || s.minRTT == 0 || !measure.IsLittle(t.carried, t.now.Sub(t.since), direct.minRTT) {
		return false
	}
	wait, carries := m.wait(t, direct), m.wait(t, s)
	if !isQuicker(wait, carries) {
		return false
	}
	t.putAside(s, standsBy, Verdict{Waypoint: direct.waypoint(), Wait: carries, OtherWait: wait})
	return true
}
