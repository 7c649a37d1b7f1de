package path

import (
	"fmt"
	"slices"
	"time"
)

// A server takes so many subflows beside a connection's first, and closes more as soon as
// they come up (docs/kernel-behaviour.md). Each try costs the connection, so the number is remembered
// for the server's address, and no connection asks for more until it may have changed.
//
// A waypoint could close a subflow like that, too. So the number is believed when two
// subflows in a row were closed while as many were up, and where not one stayed, only if they
// went different ways. As long as all went through one waypoint, the number counts for that
// waypoint only: the others are still taken, and what becomes of that shows who closes. While
// the server may still count subflows that ended, or that it was not told of, its answer is
// not taken for its number.

const (
	// placesFor is how long a number is believed the first time, and longestPlaces at most:
	// it is doubled each time when the number turns out to be the same.
	placesFor     = 10 * time.Minute
	longestPlaces = time.Hour
	// noticedAfter is how long a server may count a subflow that ended.
	noticedAfter = time.Minute
	refusals     = 2
)

// places is what is known of one server.
type places struct {
	n        int // subflows beside the first
	known    bool
	until    time.Time // it is not asked for more; when not known, when it was last refused
	lasted   time.Duration
	refused  int    // in a row, with n up
	waypoint string // of the first of these
	others   bool   // waypoints were refused, too
}

// noteFull takes in that the server closed a subflow that was one too many.
func (m *Manager) noteFull(c *conn, e *ended, now time.Time) {
	m.refusedByServers++
	if len(c.lost) > 0 || now.Sub(c.dropped) < noticedAfter || c.has(func(s *subflow) bool { return !m.here(s) }) {
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
		return // it has more than it had
	case p.known && n == p.n: // asked again, with the same answer
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

// beside counts the connection's subflows beside the first that are as wanted.
func (c *conn) beside(is func(*subflow) bool) (n int) {
	for _, s := range c.subflows {
		if s.id != 0 && is(s) {
			n++
		}
	}
	return n
}

// onlyWitness is the waypoint through which all subflows went that told the server's number,
// as far as it is known; false: there are others, or the direct path.
func (m *Manager) onlyWitness(c *conn) (waypoint string, ok bool) {
	p := m.places[c.server.Addr()]
	return p.waypoint, p.known && !p.others && p.waypoint != ""
}

// placesNote says for people how many subflows the server takes of the connection.
func (m *Manager) placesNote(c *conn, now time.Time) string {
	n := max(m.places[c.server.Addr()].n, c.beside(func(s *subflow) bool { return s.stayed(now) }))
	note := fmt.Sprintf("the server takes %d beside the first subflow", n)
	if witness, ok := m.onlyWitness(c); ok {
		note += fmt.Sprintf(" (seen through %s only)", witness)
	}
	return note
}

// heedWitness leaves the waypoint that alone told the server's number out of the view, as
// long as there are others that may show it wrong. Only else is the number believed.
func (m *Manager) heedWitness(c *conn, v *View, now time.Time) {
	v.Room, v.RoomKnown = m.roomAt(c, now)
	witness, ok := m.onlyWitness(c)
	if !ok {
		return
	}
	isWitness := func(u Usable) bool { return u.Waypoint == witness }
	if others := slices.DeleteFunc(slices.Clone(v.Usable), isWitness); len(others) > 0 {
		v.Usable, v.RoomKnown = others, false
	}
}

// roomAt is how many more subflows the server takes of the connection; false: that is not
// known. When it is to be found out again, the first connection to ask may have one more
// than were taken.
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

// askingForMore notes that the connection asks for more than the server took last time:
// others wait for what becomes of it.
func (m *Manager) askingForMore(c *conn, now time.Time) {
	addr := c.server.Addr()
	p := m.places[addr]
	if p.known && !now.Before(p.until) && c.beside(func(*subflow) bool { return true }) > p.n {
		p.until = now.Add(joinTimeout + time.Second)
		m.places[addr] = p
	}
}

// forgetPlaces drops what is no longer known of servers.
func (m *Manager) forgetPlaces(now time.Time) {
	for addr, p := range m.places {
		if now.Sub(p.until) > longestPlaces {
			delete(m.places, addr)
		}
	}
}
