package path

import "github.com/detour-collective/dcol/internal/path/policy"

// This file lets a connection that screens (screen.go) have one detour more than its policy allows, if the server has a place
// for it. Then its best detours carry on while the others are measured one after the other beside them. When the screening
// ends, the detour that carries least ends as well (surplus.go).

// mayAddExtra reports whether the connection may take another detour beside those in use.
func (m *Manager) mayAddExtra(t turn) bool {
	if t.hasExtra() || !t.has(t.presses) {
		return false
	}
	if room, known := m.places.room(t); known {
		return room > 0
	}
	return t.further() < usualPlaces
}

// triesExtra reports whether the connection has one more detour now to try out a waypoint, or a place for it.
func (t turn) triesExtra() bool {
	return t.tryouts != nil && t.tryouts.extra && (t.tryouts.waits(t.now) || t.hasExtra())
}

// hasExtra reports whether the connection has more detours than its policy allows.
func (t turn) hasExtra() bool {
	p, ok := t.rule.Policy.(policy.Detours)
	return ok && t.beside(func(s *subflow) bool { return s.detour != nil && !s.leaving && !s.isLossy() }) >= p.Subflows
}

// endExtra ends the detour that the connection has beyond its policy.
func (m *Manager) endExtra(t turn) {
	if t.tryouts != nil && t.tryouts.extra {
		t.tryouts.extra, t.exceeds = false, true
		m.again = append(m.again, t.token)
	}
}
