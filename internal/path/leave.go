package path

import "time"

// This file ends the detours of waypoints that are not to be used any more, because they were expelled or replaced,
// and detours whose path has moved. A waypoint's detours go off offer at once. A detour whose path has moved stays on
// offer, for new subflows. An existing subflow ends as soon as its connection has another that stays and has no data
// stuck on it. So this ends no connection.

func (m *Manager) waypointLeft(v via, now time.Time) {
	m.detours.leave(v, now)
	delete(m.detours.sessions.worth, v)
	delete(m.detours.loads, v)
	m.replace(func(d *Detour) bool { return d.via() == v }, CauseWithdrawn, now)
}

// replace marks the subflows over the detours that which selects as leaving.
func (m *Manager) replace(which func(*Detour) bool, cause Cause, now time.Time) {
	for _, c := range m.conns.all() {
		c.leave(which, SubflowReason{Cause: cause})
		if c.leaving() {
			m.step(m.turn(c, now))
		}
	}
}

// leave marks the subflows over the detours that which selects as leaving. It reports whether there are any.
func (c *conn) leave(which func(*Detour) bool, why SubflowReason) (found bool) {
	for _, s := range c.subflows {
		if s.detour != nil && which(s.detour) {
			c.leaveFor(s, why)
			found = true
		}
	}
	return found
}

// leaving reports whether any subflow of the connection is marked as leaving.
func (c *conn) leaving() bool { return c.has(func(s *subflow) bool { return s.leaving }) }

// endLeaving ends the leaving subflows if the connection has another that works.
func (t turn) endLeaving() {
	if t.has(t.works) {
		t.takeBack(t.where(func(s *subflow) bool { return s.leaving && s.up })...)
	}
}
