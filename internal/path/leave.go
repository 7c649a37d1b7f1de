package path

import (
	"maps"
	"slices"
	"time"
)

// A waypoint that is not to be used any more: it was expelled, or another was chosen. Its detours go off
// offer at once, and nothing new takes them. What runs over them moves: a subflow ends as soon as its
// connection has another one that stays and on which nothing is stuck. No connection is ended for it.

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

// leaving: a subflow of the connection is to end.
func (c *conn) leaving() bool { return c.has(func(s *subflow) bool { return s.leaving }) }

// endLeaving ends subflows that are to end, if the connection can do without.
func (m *Manager) endLeaving(c *conn, now time.Time) {
	if !c.has(func(s *subflow) bool { return !s.leaving && m.here(s) && s.stayed(now) && s.backoff == 0 }) {
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
