package path_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
)

// What servers in a world believe. A server takes world.limit subflows beside a
// connection's first, and counts one until it hears of its end: from the subflow
// itself where its packets still come through, by REMOVE_ADDR, or from a waypoint,
// which resets what came from an address that its member has left.

// firstTrip is the round trip of a connection's first subflow.
const firstTrip = 20 * time.Millisecond

// resetAfter is how long a server and a waypoint take to end what was left behind.
const resetAfter = 3 * time.Second

// dealsWithin is how long a server takes to deal with a REMOVE_ADDR. Others that
// come meanwhile are lost.
const dealsWithin = 10 * time.Millisecond

// comesThrough: packets of the subflow reach the server.
func (w *world) comesThrough(s *wsub) bool {
	return w.here(s) && (s.detour == nil || !w.dead[s.detour.Waypoint])
}

// takes: the server has a place for s. If not, it says so a round trip later.
func (w *world) takes(c *wconn, s *wsub) bool {
	if len(c.held) >= w.limit {
		s.doomed = true
		return false
	}
	c.held = append(c.held, s)
	return true
}

// hears: the server may have noticed the end of s.
func (w *world) hears(c *wconn, s *wsub) {
	if w.comesThrough(s) {
		c.frees(s)
	}
}

func (c *wconn) frees(s *wsub) {
	c.held = slices.DeleteFunc(c.held, func(x *wsub) bool { return x == s })
}

// word is REMOVE_ADDR on its way, over the first subflow that the kernel does not
// take for stale.
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

// left: this host has other addresses, and waypoints will know.
func (w *world) left() {
	was := slices.Clone(w.addrs)
	w.later(resetAfter, func() {
		if !slices.Equal(was, w.addrs) {
			return // it moved on, and they will know of that
		}
		for _, c := range w.conns {
			c.held = slices.DeleteFunc(c.held, func(s *wsub) bool {
				return s.detour != nil && !s.detour.Local.IsValid() && !w.here(s) && !w.dead[s.detour.Waypoint]
			})
		}
	})
}

// knows reports whether the Manager has heard of every subflow of c that ended. The
// event of one that ended just now is still on its way, so the Manager may count on it.
func (w *world) knows(c *wconn) bool {
	return !c.unsure && !w.deaf && w.now.Sub(c.endedAt) > kernelDelay
}

// TestWorldKnowsThatEventsAreOnTheirWay has the only good subflow end, and the Manager say
// something to the server at once: the kernel sends that over a stale one, which is nobody's
// fault. The seed 11801917557040338840 once led TestWorld there.
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

// unsure: the Manager may not know what its predecessor did, or what the kernel said.
func (w *world) unsure() {
	for _, c := range w.conns {
		c.unsure = true
	}
}

// wantTold: whoever has a way to the server has told it all there is to tell, and
// has the direct path.
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

// serversGiveUp: in the end their own timers tell them of what nobody could.
func (w *world) serversGiveUp() {
	for _, c := range w.conns {
		c.held = slices.DeleteFunc(c.held, func(s *wsub) bool { return !slices.Contains(c.subflows, s) || !w.here(s) })
	}
}

// moveTo: this host has these addresses now.
func (w *world) moveTo(addrs ...netip.Addr) {
	w.addrs = addrs
	w.left()
	w.tellAddrs()
}
