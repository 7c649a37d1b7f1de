package path

import (
	"maps"
	"slices"
	"time"
)

// This file handles waypoints that are not to be used any more, because they were expelled or
// another was chosen. Their detours go off offer at once, and no new subflow takes them. Existing
// subflows are replaced first: each ends as soon as its connection has another one that stays and
// that has no data stuck on it. No connection ends because of this.

func (m *Manager) leave(v via, now time.Time) {
	delete(m.lost, v)
	m.unready = slices.DeleteFunc(m.unready, func(r Resting) bool { return r.Waypoint == v.waypoint })
	for _, id := range slices.Sorted(maps.Keys(m.detours)) {
		if o := m.detours[id]; o.via() == v {
			m.drop(o, now)
		}
	}
	for _, c := range inOrder(m.conns) {
		for _, s := range c.subflows {
			if s.detour != nil && s.detour.via() == v {
				s.leaving = true
			}
		}
		if c.leaving() {
			m.step(c, now)
		}
	}
}

// leaving reports whether a subflow of the connection is to end.
func (c *conn) leaving() bool { return c.has(func(s *subflow) bool { return s.leaving }) }

// endLeaving ends the subflows marked as leaving, if the connection can do without them.
func (m *Manager) endLeaving(c *conn, now time.Time) {
	if !c.has(func(s *subflow) bool { return !s.leaving && m.hasSource(s) && s.stayed(now) && s.backoff == 0 }) {
		return
	}
	var gone []*subflow
	for _, s := range c.subflows {
		if s.leaving && s.up {
			gone = append(gone, s)
		}
	}
	m.takeBack(c, now, gone...)
}
