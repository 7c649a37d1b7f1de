package path

import (
	"cmp"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file ends detours of a connection that has more subflows than its policy allows: the operator lowered the number, or the
// connection tried out waypoints beside its detours (screen.go). It ends one at a time, the least useful first: the detour
// becomes a backup, so that its queue drains, and then ends. The last subflow that works stays.

// extraEndsWithin is the time within which the extra detour of a screening ends as surplus.
const extraEndsWithin = 5 * time.Second

// surplus returns how many detours the connection has beyond the number that its policy allows. The direct path counts even if
// it does not work, as when detours are opened.
func (t turn) surplus() int {
	p, ok := t.rule.Policy.(policy.Detours)
	if !t.exceeds || !ok {
		return 0
	}
	return 1 + len(t.where(func(s *subflow) bool { return s.detour != nil && !s.leaving && t.host.hasSource(s) })) - p.Subflows
}

func (s *subflow) isSurplus() bool { return s.isAside(surplus) }

// endSurplus takes the next step in ending the surplus detours of a connection.
func (m *Manager) endSurplus(t turn) {
	over := t.surplus() > 0
	if s := t.find((*subflow).isSurplus); s != nil {
		switch {
		case !over && !s.leaving && !t.open():
			s.aside.cause = notAside // it still waits for the server's first data
		case !over && !s.leaving:
			t.carryAgain(s) // the operator raised the number again, or another detour has ended
		case !s.leaving && s.isDrained(t.now.Sub(s.told.at), longestDrain) && t.handOver(s, t.surelyWorks):
			t.leaveFor(s, m.weighing(t).surplusReason(s))
		}
		return
	}
	// A detour that is exchanged makes the number too large for a moment. After a stall, all subflows are needed until it
	// shows which of them work.
	t.exceeds = over
	if !over || t.has((*subflow).isChanging) ||
		t.attention != nil && t.now.Sub(t.attention.stalls.calledUp) < asideWaits {
		return
	}
	s := slices.MaxFunc(t.where(func(s *subflow) bool { return s.detour != nil && t.host.hasSource(s) }), func(a, b *subflow) int { return m.useless(t, a, b) })
	if !t.handOver(s, t.surelyWorks) {
		return
	}
	if !s.backup {
		t.putAside(s, surplus, Verdict{})
		return
	}
	if s.aside == nil {
		s.aside = &aside{}
	}
	s.aside.cause, s.aside.since = surplus, t.now
	if s.isDrained(t.now.Sub(s.told.at), longestDrain) {
		t.leaveFor(s, m.weighing(t).surplusReason(s))
	}
}

// surplusReason returns why a surplus detour ends. After a screening beside others, these are compared (extra.go).
func (w weighing) surplusReason(s *subflow) SubflowReason {
	if w.tryouts == nil || !within(w.tryouts.extraEnded, w.now, extraEndsWithin) {
		return s.aside.reason()
	}
	steering := &w.detours.steering
	if !steering.wants(s.waypoint()) && w.has(func(x *subflow) bool { return x.detour != nil && steering.wants(x.waypoint()) }) {
		return SubflowReason{Cause: CauseOtherWanted}
	}
	why := SubflowReason{Cause: CauseTried}
	tried, _ := w.tryouts.of(s.waypoint())
	most := tried.Goodput
	for _, x := range w.subflows {
		if r, ok := w.tryouts.of(x.waypoint()); ok && x.detour != nil && r.Goodput > most && tried.Goodput > 0 {
			why.Other = &policy.Comparison{Waypoint: r.Waypoint, Goodput: tried.Goodput, OtherGoodput: r.Goodput}
			most = r.Goodput
		}
	}
	return why
}

// useless compares two detours. The less useful one is greater: the backup, the one whose waypoint the operator does not want
// more than others, the one that carries less, the one over which messages wait longer, or the younger one.
func (m *Manager) useless(t turn, a, b *subflow) int {
	return cmp.Or(
		policy.CompareFlags(a.backup, b.backup),
		policy.CompareFlags(!m.detours.steering.wants(a.waypoint()), !m.detours.steering.wants(b.waypoint())),
		cmp.Compare(t.moves(b), t.moves(a)),
		cmp.Compare(m.weighing(t).wait(a), m.weighing(t).wait(b)),
		a.since.Compare(b.since),
	)
}

// moves returns the rate at which the subflow carries data, in bits a second.
func (t turn) moves(s *subflow) float64 {
	if rate, known := t.steadyRate(s); known {
		return rate
	}
	return max(t.gets(s), 8*float64(s.flow.in+s.flow.out))
}
