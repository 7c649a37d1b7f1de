package path

import (
	"fmt"
	"slices"
	"time"
)

// A server accepts a limited number of subflows beside a connection's first, and closes any more as
// soon as they come up (docs/kernel-behaviour.md). Each try costs the connection, so the number is
// remembered for the server's address. No connection asks for more until the number may have
// changed.
//
// A waypoint could close a subflow in the same way. So the number is believed only when two
// subflows in a row were closed while as many were up and, if not one stayed, only if they took
// different routes. As long as all went through one waypoint, the number counts for that waypoint
// only: the others are still used, which shows whether the waypoint or the server closes. While the
// server may still count subflows that ended, or whose end it was not told, the number is not
// updated.

const (
	// placesFor is how long a number is believed the first time. That time doubles whenever the
	// number is confirmed, up to longestPlaces.
	placesFor     = 10 * time.Minute
	longestPlaces = time.Hour
	// noticedAfter is how long a server may still count a subflow that ended.
	noticedAfter = time.Minute
	refusals     = 2
)

// places records how many subflows one server accepts.
type places struct {
	n        int // subflows beside the first
	known    bool
	until    time.Time // do not ask for more before; while not known, the time of the last refusal
	lasted   time.Duration
	refused  int    // consecutive refusals with n subflows up
	waypoint string // used by the first of these
	others   bool   // other waypoints were refused, too
}

// noteFull records that the server closed a surplus subflow.
func (m *Manager) noteFull(c *conn, e *ended, now time.Time) {
	m.refusedByServers++
	if len(c.lost) > 0 || now.Sub(c.dropped) < noticedAfter || c.has(func(s *subflow) bool { return !m.hasSource(s) }) {
		return
	}
	n := c.beside(func(s *subflow) bool { return s.up && !s.since.After(e.since) })
	p := m.places[c.server.Addr()]
	waypoint := ""
	if e.detour != nil {
		waypoint = e.detour.Waypoint
	}
	switch {
	case p.known && n > p.n:
		return // now has more than before
	case p.known && n == p.n: // confirmed
		p.refused, p.others = refusals, p.others || p.waypoint != waypoint
	case p.refused > 0 && p.n == n:
		p.refused++
		p.others = p.others || p.waypoint != waypoint
	default:
		p = places{n: n, refused: 1, waypoint: waypoint}
	}
	if !p.known {
		p.until = now
	}
	if p.refused >= refusals && (n > 0 || p.others) {
		p.lasted = min(max(placesFor, 2*p.lasted), longestPlaces)
		p.known, p.until, p.refused = true, now.Add(p.lasted), 0
	}
	m.places[c.server.Addr()] = p
}

// beside counts the connection's subflows, without the first, for which is returns true.
func (c *conn) beside(is func(*subflow) bool) (n int) {
	for _, s := range c.subflows {
		if s.id != 0 && is(s) {
			n++
		}
	}
	return n
}

// onlyWitness returns the one waypoint used by all subflows that showed the server's number. ok is
// false if there were other waypoints or the direct path.
func (m *Manager) onlyWitness(c *conn) (waypoint string, ok bool) {
	p := m.places[c.server.Addr()]
	return p.waypoint, p.known && !p.others && p.waypoint != ""
}

// placesNote describes for users how many subflows the server accepts on the connection.
func (m *Manager) placesNote(c *conn, now time.Time) string {
	n := max(m.places[c.server.Addr()].n, c.beside(func(s *subflow) bool { return s.stayed(now) }))
	note := fmt.Sprintf("the server takes %d beside the first subflow", n)
	if witness, ok := m.onlyWitness(c); ok {
		note += fmt.Sprintf(" (seen through %s only)", witness)
	}
	return note
}

// plan asks the policy which detours to open. If a single waypoint showed the server's number, the
// policy first plans without that waypoint and without the number, to disprove it. If that opens
// nothing, the number is believed.
func (m *Manager) plan(c *conn, v View, now time.Time) Plan {
	room, known := m.roomAt(c, now)
	if witness, ok := m.onlyWitness(c); ok {
		others := v
		others.Usable = slices.DeleteFunc(slices.Clone(v.Usable), func(u Usable) bool { return u.Waypoint == witness })
		if plan := m.cfg.Policy.Plan(others); len(plan.Open) > 0 {
			return plan
		}
	}
	v.Room, v.RoomKnown = room, known
	return m.cfg.Policy.Plan(v)
}

// roomAt returns how many more subflows the server accepts on the connection; known is false if
// that is unknown. When the number is due to be checked again, the first connection to ask may open
// one more.
func (m *Manager) roomAt(c *conn, now time.Time) (n int, known bool) {
	addr := c.server.Addr()
	p := m.places[addr]
	if !p.known {
		return 0, false
	}
	if stayed := c.beside(func(s *subflow) bool { return s.stayed(now) }); stayed > p.n {
		p.n = stayed
		m.places[addr] = p
	}
	n = p.n - c.beside(func(*subflow) bool { return true })
	if !now.Before(p.until) {
		n++
	}
	return max(0, n), true
}

// askingForMore records that the connection opens more than the server accepted last time. Others
// wait for the result.
func (m *Manager) askingForMore(c *conn, now time.Time) {
	addr := c.server.Addr()
	p := m.places[addr]
	if p.known && !now.Before(p.until) && c.beside(func(*subflow) bool { return true }) > p.n {
		p.until = now.Add(joinTimeout + time.Second)
		m.places[addr] = p
	}
}

// forgetPlaces drops expired knowledge about servers.
func (m *Manager) forgetPlaces(now time.Time) {
	for addr, p := range m.places {
		if now.Sub(p.until) > longestPlaces {
			delete(m.places, addr)
		}
	}
}
