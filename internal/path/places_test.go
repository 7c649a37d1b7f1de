package path_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
)

// These functions model what servers in a world believe. A server takes world.limit subflows beside a connection's
// first, and counts a subflow until it hears of its end: from the subflow itself if its packets still arrive, by
// REMOVE_ADDR, or from a waypoint, which resets connections from an address that its member has left.

// firstTrip is the round trip of a connection's first subflow.
const firstTrip = 20 * time.Millisecond

// resetAfter is the time that a server and a waypoint take to end what was left behind.
const resetAfter = 3 * time.Second

// dealsWithin is the time that a server takes to process a REMOVE_ADDR. It drops others that arrive meanwhile.
const dealsWithin = 10 * time.Millisecond

// comesThrough reports whether packets of the subflow reach the server.
func (w *world) comesThrough(s *wsub) bool {
	return w.here(s) && (s.detour == nil || !w.dead[s.detour.Waypoint])
}

// takes reports whether the server has a place for s. If not, it says so a round trip later.
func (w *world) takes(c *wconn, s *wsub) bool {
	if len(c.held) >= w.limit {
		s.doomed = true
		return false
	}
	c.held = append(c.held, s)
	return true
}

// hears records that the server may have noticed the end of s.
func (w *world) hears(c *wconn, s *wsub) {
	if w.comesThrough(s) {
		c.frees(s)
	}
}

func (c *wconn) frees(s *wsub) {
	c.held = slices.DeleteFunc(c.held, func(x *wsub) bool { return x == s })
}

// word sends a REMOVE_ADDR over the first subflow that the kernel does not consider stale.
func (w *world) word(c *wconn, a path.RemoveAddr) {
	i := slices.IndexFunc(c.subflows, func(s *wsub) bool { return s.up && (s.detour == nil || !w.dead[s.detour.Waypoint]) })
	if i < 0 {
		return
	}
	over := c.subflows[i]
	if a.Local.IsValid() && w.knows(c) && (over.doomed || !w.here(over)) {
		w.t.Fatalf("%+v: this goes over subflow %d, which does not stay", a, over.id)
	}
	w.later(over.trip, func() {
		if !over.doomed && w.comesThrough(over) && slices.Contains(c.subflows, over) && w.now.Sub(c.heardAt) > dealsWithin {
			c.heardAt = w.now
			c.held = slices.DeleteFunc(c.held, func(s *wsub) bool { return s.id == a.LocalID && !slices.Contains(c.subflows, s) })
		}
	})
}

// left records that this host has other addresses, which waypoints will notice.
func (w *world) left() {
	was := slices.Clone(w.addrs)
	w.later(resetAfter, func() {
		if !slices.Equal(was, w.addrs) {
			return // it moved again, and they will notice that
		}
		for _, c := range w.conns {
			c.held = slices.DeleteFunc(c.held, func(s *wsub) bool {
				return s.detour != nil && !s.detour.Local.IsValid() && !w.here(s) && !w.dead[s.detour.Waypoint]
			})
		}
	})
}

// knows reports whether the Manager has heard of every ended subflow of c. The event about one that has just ended is
// under way, so the Manager may still rely on it.
func (w *world) knows(c *wconn) bool {
	return !c.unsure && !w.deaf && w.now.Sub(c.endedAt) > kernelDelay
}

// TestWorldKnowsThatEventsAreOnTheirWay ends the only good subflow while the Manager sends something to the server.
// The kernel sends that over a stale subflow, which is nobody's fault. The seed 11801917557040338840 once led
// TestWorld there.
func TestWorldKnowsThatEventsAreOnTheirWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		c := &wconn{token: 1, ids: make(map[uint8]bool)}
		c.remote = netip.AddrPortFrom(ip("web"), 80)
		c.server = c.remote
		for id, name := range []string{"me", "me3"} {
			local := netip.AddrPortFrom(ip(name), 10001)
			c.subflows = append(c.subflows, &wsub{id: uint8(id), local: local, remote: c.remote, up: true, direct: true, told: true})
		}
		w.conns[c.token], w.past[c.token] = c, c
		stale := c.subflows[1]
		w.run(time.Second)
		if !w.knows(c) || w.here(stale) {
			t.Fatal("the Manager has heard all there is, and one subflow is stale")
		}
		w.end(c, c.subflows[0])
		w.word(c, path.RemoveAddr{Token: c.token, LocalID: 1, Local: stale.local})
		w.run(2 * kernelDelay)
		if !w.knows(c) {
			t.Error("the event has arrived, and now it would be the Manager's fault")
		}
	})
}

// unsure records that the Manager may not know what its predecessor did, or what the kernel reported.
func (w *world) unsure() {
	for _, c := range w.conns {
		c.unsure = true
	}
}

// wantTold checks that every connection that can reach its server has told it all, and has the direct path.
func (w *world) wantTold() {
	for _, c := range w.living() {
		there := func(s *wsub) bool { return s.up && w.comesThrough(s) }
		if c.unsure || c.serverSide || c.excluded || !slices.ContainsFunc(c.subflows, there) {
			continue
		}
		forbidden := c.denies && c.server == c.remote
		if !forbidden && !slices.ContainsFunc(c.subflows, func(s *wsub) bool { return s.direct && there(s) }) {
			w.t.Fatalf("connection %d: the direct path did not come back\n%s", c.token, w.describe(c))
		}
		for _, s := range c.held {
			if !slices.Contains(c.subflows, s) || !w.here(s) {
				w.t.Fatalf("connection %d: the server still counts subflow %d from %v\n%s", c.token, s.id, s.local, w.describe(c))
			}
		}
	}
}

// serversGiveUp lets the servers' timers end what nobody could tell them.
func (w *world) serversGiveUp() {
	for _, c := range w.conns {
		c.held = slices.DeleteFunc(c.held, func(s *wsub) bool { return !slices.Contains(c.subflows, s) || !w.here(s) })
	}
}

// moveTo gives this host these addresses.
func (w *world) moveTo(addrs ...netip.Addr) {
	w.addrs = addrs
	w.left()
	w.tellAddrs()
}
