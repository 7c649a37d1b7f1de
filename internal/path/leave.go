package path

import "time"

// This file handles waypoints that are not to be used any more, because they were expelled or
// another was chosen. Their detours go off offer at once, and no new subflow takes them. Existing
// subflows are replaced first: each ends as soon as its connection has another one that stays and
// that has no data stuck on it. No connection ends because of this.

func (m *Manager) waypointLeft(v via, now time.Time) {
	m.detours.leave(v, now)
	delete(m.detours.sessions, v)
	delete(m.detours.loads, v)
	for _, c := range m.conns.all() {
		c.leave(func(d *Detour) bool { return d.via() == v })
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
