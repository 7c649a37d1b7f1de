package path

import "slices"

// This file carries out what a Layout decides about the use of subflows.

// stuckBackoff is the number of doublings of the retransmission timer at which a subflow counts as stuck. On a short
// path it is reached after 0.6 s.
const stuckBackoff = 2

// arrange gives each subflow its role.
func (m *Manager) arrange(t turn) {
	layout, ok := t.rule.Policy.(Layout)
	if !ok && !t.rule.spares() {
		return
	}
	v := m.views.of(t, &m.detours)
	inUse := slices.Clone(m.views.subflows)
	roles := make([]Role, len(inUse))
	if ok {
		roles = layout.Arrange(v)
	}
	m.spareSpent(t, inUse, roles)
	for i, s := range inUse {
		if s.up {
			t.play(s, roles[i])
		}
	}
}

// play gives a subflow its role.
func (t turn) play(s *subflow, r Role) {
	if r == Leaves {
		t.leaveFor(s, SubflowReason{Cause: CauseStandby})
		return
	}
	if s.standby == (r == StandsBy) {
		return
	}
	s.standby = r == StandsBy
	held := s.setAside() || s.doubts().demoted || s.detour != nil && !s.detour.Kind.own() && !t.open()
	if s.standby && !s.backup || !s.standby && s.backup && !held {
		t.setBackup(s, s.standby)
	}
}

// stuck reports whether nothing gets through over the subflow now, as far as is known, or whether it loses too much.
func (t turn) stuck(s *subflow) bool {
	return s.backoff >= stuckBackoff || s.isLossy() || s.suspected() && s.unansweredFor(demoteUnanswered) ||
		t.inDoubt(s) || s.backoff > 0 && t.attention != nil && t.now.Sub(t.attention.stalls.calledUp) < asideWaits
}

// hasUplink reports whether the connection has a subflow over another uplink.
func (t turn) hasUplink() bool {
	return t.has(func(s *subflow) bool {
		return s.detour != nil && s.detour.Kind == Uplink && t.host.hasSource(s) && !s.leaving
	})
}

// uplinkIsDirect reports whether a subflow over another uplink takes the place of the direct one.
func (t turn) uplinkIsDirect() bool {
	return t.hasUplink() && (!t.host.owns(t.local.Addr()) || t.rule.isSingle())
}

// directElsewhere reports whether the direct path starts from another address than the connection's own.
func (t turn) directElsewhere() bool {
	return t.uplinkIsDirect() || t.has(func(s *subflow) bool {
		return s.direct && !s.leaving && t.host.hasSource(s) && s.local.Addr() != t.local.Addr()
	})
}

// uplinkOf returns the name of the uplink from which a subflow that passes no waypoint starts, or "" if it is not
// known.
func (of *offers) uplinkOf(s *subflow) string {
	for _, o := range of.general {
		if o.Kind == Uplink && o.Local == s.local.Addr() && (s.direct || s.detour != nil && s.detour.Kind.own()) {
			return o.Waypoint
		}
	}
	return ""
}
