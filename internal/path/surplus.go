package path

import (
	"cmp"
	"slices"
)

// This file ends detours of existing connections after the operator lowered the number of subflows. It ends one at a
// time, the least useful first: the detour becomes a backup, so that its queue drains, and then ends. The last subflow
// that works stays.

// surplus returns how many detours the connection has beyond a lowered number. The direct path counts even if it does
// not work, as when detours are opened.
func (t turn) surplus() int {
	p, ok := t.rule.Policy.(DetourPolicy)
	if !t.lowered || !ok {
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
			t.leaveFor(s, s.aside.reason())
		}
		return
	}
	// A detour that is exchanged makes the number too large for a moment. After a stall, all subflows are needed until it
	// shows which of them work.
	t.lowered = over
	if !over || t.has(func(s *subflow) bool { return s.detour != nil && (!s.up || s.leaving || !s.crowded.IsZero()) }) ||
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
		t.leaveFor(s, s.aside.reason())
	}
}

// useless compares two detours. The less useful one is greater: the backup, the one that carries less, the one over
// which messages wait longer, or the younger one.
func (m *Manager) useless(t turn, a, b *subflow) int {
	return cmp.Or(
		compareFlags(a.backup, b.backup),
		cmp.Compare(b.flow.in+b.flow.out, a.flow.in+a.flow.out),
		cmp.Compare(m.wait(t, a), m.wait(t, b)),
		a.since.Compare(b.since),
	)
}
