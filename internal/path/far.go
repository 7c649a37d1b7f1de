package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file keeps the first messages of a connection off a detour that is much longer than another path. Linux uses a
// subflow that is no backup as soon as it is fully established, but the kind of traffic is known only later. So a long detour
// becomes a backup when it is fully established, if little has moved by then. It carries again when much moves, or when the
// traffic turns out to be bulk (divide).

// fullyLater allows for jitter: the last exchange of the handshake may take that much longer than the first.
const fullyLater = 2 * time.Millisecond

// fullyUp returns when a subflow that this host opened is fully established: when the peer has answered the last
// segment of the handshake. Until then, it carries no data, and Linux refuses to change its priority.
func (s *subflow) fullyUp() time.Time { return s.since.Add(s.took + fullyLater) }

// mayBeFar reports whether a detour is to be compared with the paths that carry: it came up a moment ago and carries, and the
// kind of traffic is not known. A connection without a slot is left alone, because it is not noticed when much moves.
func (w weighing) mayBeFar(s *subflow) bool {
	_, detours := w.rule.Policy.(policy.Detours)
	return w.byWorth && detours && !w.adopted && !w.slotless && w.open() && w.kind == measure.Short && !w.kindSaid &&
		s.detour != nil && s.up && !s.backup && s.aside == nil && s.took > 0 && s.took < synAgain && w.now.Sub(s.since) <= s.takesPriorityAfter()
}

// measureYoung requests samples of the subflows that carry and of detours that may be far, once these are fully established. It
// asks only once for each, because the kernel may have closed the subflow, and then the answer leads to another step.
func (m *Manager) measureYoung(t turn) {
	for _, s := range t.subflows {
		if s.asked || !m.weighing(t).mayBeFar(s) || t.now.Before(s.fullyUp()) {
			continue
		}
		s.asked = true
		for _, x := range append(t.carryBeside(s), s) {
			t.out.do(Measure{t.token, x.local, x.remote})
		}
	}
}

// carryBeside returns the fully established subflows beside s that carry and work.
func (t turn) carryBeside(s *subflow) []*subflow {
	return t.where(func(x *subflow) bool {
		return x != s && t.ours(x) && !x.backup && t.works(x) && !t.now.Before(x.fullyUp())
	})
}

// leaveFarBehind sets aside a detour that was just sampled, if it is much longer than another path that carries. It reports
// whether it did.
func (w weighing) leaveFarBehind(s *subflow) bool {
	if !w.mayBeFar(s) || w.now.Before(s.fullyUp()) {
		return false
	}
	var best *estimate
	var trip time.Duration // of the longest path that carried until now
	for _, x := range w.carryBeside(s) {
		if e := w.estimate(x); x.minRTT > 0 && (best == nil || e.wait < best.wait) {
			best = &e
		}
		trip = max(trip, x.minRTT)
	}
	if best == nil || s.minRTT == 0 || !measure.IsLittle(w.carried, w.now.Sub(w.since), trip) {
		return false
	}
	why := w.estimate(s).beside(*best)
	if !isQuicker(why.OtherWait, why.Wait) {
		return false
	}
	w.putAside(s, standsBy, why)
	return true
}
