package path

import "time"

// This file handles waypoints that are not to be used any more, because they were expelled or
// another was chosen, and paths that have moved. A waypoint's detours go off offer at once, and no new
// subflow takes them; a path that has moved stays on offer. Existing subflows are replaced first: each ends as soon as its connection has another one that stays and
// that has no data stuck on it. No connection ends because of this.

func (m *Manager) waypointLeft(v via, now time.Time) {
	m.detours.leave(v, now)
	delete(m.detours.sessions, v)
	delete(m.detours.loads, v)
	m.replace(func(d *Detour) bool { return d.via() == v }, now)
}

// replace has the subflows over some detours end.
func (m *Manager) replace(which func(*Detour) bool, now time.Time) {
	for _, c := range m.conns.all() {
		c.leave(which)
		if c.leaving() {
			m.step(m.turn(c, now))
		}
	}
}

// leave marks the subflows over some detours as leaving. It reports whether there are any.
func (c *conn) leave(which func(*Detour) bool) (found bool) {
	for _, s := range c.subflows {
		if s.detour != nil && which(s.detour) {
			s.leaving, found = true, true
		}
	}
	return found
}

// leaving reports whether a subflow of the connection is to end.
func (c *conn) leaving() bool { return c.has(func(s *subflow) bool { return s.leaving }) }

// endLeaving ends the subflows marked as leaving, if the connection can do without them.
func (t turn) endLeaving() {
	if t.has(func(s *subflow) bool { return !s.leaving && t.host.hasSource(s) && s.stayed(t.now) && s.backoff == 0 }) {
		t.takeBack(t.where(func(s *subflow) bool { return s.leaving && s.up })...)
	}
}
