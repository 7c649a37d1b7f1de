package path_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
)

// These functions model what waypoints, the agent and the network do in a world, and how it heals.

var general = []path.Detour{
	{ID: "in-band bob", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)},
	{ID: "wireguard carol", Kind: path.WireGuard, Waypoint: "carol", Local: ip("tun"), Endpoint: ip("carol")},
	{ID: "openvpn bob", Kind: path.OpenVPN, Waypoint: "bob", Local: ip("tun2"), Endpoint: ip("bob")},
}

var tunnels = []netip.Addr{ip("tun"), ip("tun2")}

func tunnel(a netip.Addr) bool { return slices.Contains(tunnels, a) }

func (w *world) tellAddrs() { w.tell(w.localAddrs()) }

func (w *world) localAddrs() path.LocalAddrs {
	return path.LocalAddrs{Addrs: w.addrs, Tunnels: tunnels}
}

func (w *world) offer(d path.Detour) {
	w.offers[d.ID] = d
	w.tell(path.DetourOffered{Detour: d})
}

func (w *world) offerGeneral(t *rapid.T) {
	if d := rapid.SampledFrom(general).Draw(t, "detour"); !w.unwanted[d.Waypoint] && (!w.lost[d.Waypoint] || d.Kind != path.InBand) {
		w.offer(d)
	}
}

func (w *world) withdraw(t *rapid.T) {
	if ids := slices.Sorted(maps.Keys(w.offers)); len(ids) > 0 {
		id := rapid.SampledFrom(ids).Draw(t, "detour")
		delete(w.offers, id)
		w.tell(path.DetourWithdrawn{ID: id})
	}
}

// forbids reports whether a waypoint leads nobody to a server. bob says so for web2 when asked for a mapping.
func (w *world) forbids(waypoint string, server netip.AddrPort) bool {
	return waypoint == "bob" && server.Addr() == ip("web2") && slices.Contains(w.order, path.Mapped)
}

// request asks each living waypoint for a mapping, once.
func (w *world) request(server netip.AddrPort) {
	for _, waypoint := range []string{"bob", "carol"} {
		addr := ip(waypoint)
		if !server.Addr().Is4() {
			if waypoint != "bob" {
				continue
			}
			addr = ip("bob6")
		}
		if addr == server.Addr() {
			continue // it refuses its own address
		}
		id := path.DetourID(fmt.Sprintf("%s to %v", waypoint, server))
		w.later(20*time.Millisecond, func() {
			if w.forbids(waypoint, server) && !w.lost[waypoint] {
				w.tell(path.ServerRefused{
					Waypoint: waypoint, Addr: addr, Server: server, Err: errors.New("forbidden"), For: 30 * time.Second,
				})
				return
			}
			if _, known := w.offers[id]; known || w.dead[waypoint] || w.lost[waypoint] || w.unwanted[waypoint] {
				return
			}
			w.port++
			w.offer(path.Detour{
				ID: id, Kind: path.Mapped, Waypoint: waypoint, Remote: netip.AddrPortFrom(addr, w.port), Server: server,
			})
		})
	}
}

// mappingMoves moves a detour to another port.
func (w *world) mappingMoves(t *rapid.T) {
	for _, id := range slices.Sorted(maps.Keys(w.offers)) {
		if d := w.offers[id]; d.Kind == path.Mapped && rapid.Bool().Draw(t, "moves") {
			w.port++
			d.Remote = netip.AddrPortFrom(d.Remote.Addr(), w.port)
			w.offer(d)
		}
	}
}

// waypointDies kills a waypoint. Its session notices seconds later.
func (w *world) waypointDies(t *rapid.T) {
	waypoint := rapid.SampledFrom([]string{"bob", "carol"}).Draw(t, "waypoint")
	w.dead[waypoint] = true
	w.later(4*time.Second, func() {
		if !w.dead[waypoint] {
			return
		}
		w.lost[waypoint] = true
		for _, id := range slices.Sorted(maps.Keys(w.offers)) {
			if d := w.offers[id]; d.Waypoint == waypoint && !d.Local.IsValid() {
				delete(w.offers, id)
				w.tell(path.DetourWithdrawn{ID: id})
			}
		}
		w.tell(path.WaypointLost{Waypoint: waypoint, Addr: ip(waypoint)})
	})
}

// waypointLeaves removes a waypoint, which is not to be used any more at any address.
func (w *world) waypointLeaves(t *rapid.T) {
	waypoint := rapid.SampledFrom([]string{"bob", "carol"}).Draw(t, "waypoint")
	w.unwanted[waypoint] = true
	maps.DeleteFunc(w.offers, func(_ path.DetourID, d path.Detour) bool { return d.Waypoint == waypoint })
	for _, c := range w.conns {
		for _, s := range c.subflows {
			s.leaving = s.leaving || s.ours && s.detour != nil && s.detour.Waypoint == waypoint
		}
	}
	for _, name := range []string{waypoint, waypoint + "6"} {
		if _, has := hosts[name]; has {
			w.tell(path.WaypointLeft{Waypoint: waypoint, Addr: ip(name)})
		}
	}
}

// detourMoves lets a detour on offer take another path.
func (w *world) detourMoves(t *rapid.T) {
	if len(w.offers) == 0 {
		return
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(w.offers))).Draw(t, "moved")
	for _, c := range w.conns {
		for _, s := range c.subflows {
			s.leaving = s.leaving || s.ours && s.detour != nil && s.detour.ID == id
		}
	}
	w.tell(path.DetourMoved{ID: id})
}

// steer changes which waypoints the operator allows.
func (w *world) steer(t *rapid.T) {
	names := []string{"bob", "carol"}
	w.steerBy(path.Steering{
		Use:   rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "use"),
		Only:  rapid.Bool().Draw(t, "only"),
		Avoid: rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 1, rapid.ID).Draw(t, "avoid"),
	})
}

func (w *world) steerBy(s path.Steering) {
	w.steering = s
	for _, c := range w.conns {
		for _, s := range c.subflows {
			s.leaving = s.leaving || s.ours && s.detour != nil && !w.wanted(s.detour.Waypoint)
		}
	}
	w.tell(path.Steered{Steering: s})
}

// wanted reports whether the operator allows a waypoint.
func (w *world) wanted(waypoint string) bool {
	return !slices.Contains(w.steering.Avoid, waypoint) && (!w.steering.Only || slices.Contains(w.steering.Use, waypoint))
}

// waypointLoaded lets a waypoint state a load for some time, which may be a lie, or the end of its load. Connections
// may leave it until a little more than a minute later.
func (w *world) waypointLoaded(t *rapid.T) {
	waypoint := rapid.SampledFrom([]string{"bob", "carol"}).Draw(t, "waypoint")
	says := rapid.SampledFrom([]time.Duration{-time.Hour, 0, 5 * time.Second, 15 * time.Second, 365 * 24 * time.Hour}).Draw(t, "for")
	if says > 0 {
		w.crowded[waypoint] = w.now.Add(min(says, time.Minute) + 10*time.Second)
	}
	for _, name := range []string{waypoint, waypoint + "6"} {
		if _, has := hosts[name]; has {
			w.tell(path.WaypointLoaded{Waypoint: waypoint, Addr: ip(name), Until: w.now.Add(says)})
		}
	}
}

func (w *world) waypointBack(t *rapid.T) {
	w.revive(rapid.SampledFrom([]string{"bob", "carol"}).Draw(t, "waypoint"))
}

func (w *world) revive(waypoint string) {
	w.dead[waypoint], w.unwanted[waypoint] = false, false
	w.later(time.Second, func() {
		if !w.dead[waypoint] {
			w.lost[waypoint] = false
			w.tell(path.WaypointReady{Waypoint: waypoint})
		}
	})
}

// hear tells the agent that events were lost.
func (w *world) hear() {
	if w.deaf {
		w.deaf = false
		w.put(pending{w.now.Add(kernelDelay), true, w.resync})
	}
}

func (w *world) addressesChange(t *rapid.T) {
	w.moveTo(rapid.SampledFrom([][]netip.Addr{
		{ip("tun"), ip("me"), ip("me6")}, {ip("me2")}, {ip("tun"), ip("me2"), ip("me6"), ip("me")}, {},
	}).Draw(t, "addresses")...)
}

// movesOn moves the host from network to network.
func (w *world) movesOn(t *rapid.T) {
	for range rapid.IntRange(2, 4).Draw(t, "times") {
		w.moveTo(rapid.SampledFrom([]netip.Addr{ip("me"), ip("me2"), ip("me3")}).Draw(t, "to"))
		ms := rapid.OneOf(rapid.IntRange(1, 900), rapid.Just(20_000)).Draw(t, "stays ms")
		w.run(time.Duration(ms) * time.Millisecond)
	}
}

// tunnelAddress adds or removes an address with its tunnel. That changes nothing for what is outside the tunnel.
func (w *world) tunnelAddress(t *rapid.T) {
	a := rapid.SampledFrom(tunnels).Draw(t, "address")
	if i := slices.Index(w.addrs, a); i >= 0 {
		w.addrs = slices.Delete(slices.Clone(w.addrs), i, i+1)
	} else {
		w.addrs = append([]netip.Addr{a}, w.addrs...)
	}
	w.tellAddrs()
}

// restart starts a new agent beside the existing connections. What the old one knew of joins under way is lost, and
// so are the kernel's events in between.
func (w *world) restart(*rapid.T) {
	w.m, w.twin = path.New(w.cfg), path.New(w.cfg)
	w.started, w.deaf = true, false
	w.unsure()
	w.inband.forget()
	w.queue = slices.DeleteFunc(w.queue, func(p pending) bool { return p.kernel })
	clear(w.offers)
	clear(w.lost)
	clear(w.unwanted)
	clear(w.lossy)
	steering := w.steering
	w.steering = path.Steering{}
	for _, c := range w.conns {
		c.server, c.denies, c.adopted = c.remote, false, true
		for _, s := range c.subflows {
			s.direct = s.direct && s.remote == c.remote
			s.passes = s.remote == c.remote && !s.up
			s.ours = s.direct && s.up
			s.leaving = false
		}
	}
	w.resync()
	w.tellAddrs()
	w.steerBy(steering)
}

// heal repairs everything, and waits for the longest backoff.
func (w *world) heal() {
	w.moody, w.limit, w.inband.path = false, w.n, "through"
	w.run(5 * time.Second)
	w.steerBy(path.Steering{})
	w.revive("bob")
	w.revive("carol")
	w.run(5 * time.Second)
	w.hear()
	w.moveTo(ip("tun"), ip("tun2"), ip("me"), ip("me6"))
	for _, d := range general {
		w.offer(d)
	}
	w.run(5 * time.Minute)
	w.wantTold()
	w.serversGiveUp()
	w.limit = 100
	w.run(2 * time.Hour)
	for range 15 {
		w.run(10 * time.Second)
		for _, c := range w.conns {
			for _, s := range c.subflows {
				if s.up && s.direct {
					s.received += 1000
				}
			}
		}
		w.measureAll()
	}
}

// wantPaths checks that every connection has all paths that there are for it, and that nothing more happens.
func (w *world) wantPaths() {
	for _, c := range w.living() {
		if c.serverSide || c.excluded || c.denies && c.server == c.remote {
			continue
		}
		direct, up, ways := 0, 0, 1
		for _, d := range w.offers {
			if _, ok := leads(d, c.server); ok && slices.Contains(w.order, d.Kind) && !w.forbids(d.Waypoint, c.server) {
				ways++
			}
		}
		for _, s := range c.subflows {
			if s.up && s.leaving {
				w.t.Fatalf("connection %d to %v: subflow %d goes through a waypoint that is not used any more", c.token, c.server, s.id)
			}
			if !s.up || !w.here(s) {
				continue
			}
			up++
			if s.direct {
				direct++
			}
			if s.ours && s.backup && (c.adopted || !slices.ContainsFunc(c.subflows, func(x *wsub) bool { return x.up && !x.backup && w.here(x) })) {
				w.t.Fatalf("connection %d to %v: subflow %d was never promoted", c.token, c.server, s.id)
			}
		}
		if direct == 0 || up < min(w.n, ways) {
			w.t.Fatalf("connection %d to %v: %d subflows are up, %d direct; %d are wanted, of %d ways\n%s",
				c.token, c.server, up, direct, w.n, ways, w.describe(c))
		}
	}
	creates := w.creates
	w.run(2 * time.Minute)
	if w.creates > creates {
		w.t.Fatalf("all is well, but %d more subflows were created", w.creates-creates)
	}
}

func (w *world) describe(c *wconn) (text string) {
	for _, s := range c.subflows {
		text += fmt.Sprintf("kernel: %+v\n", *s)
	}
	return text + fmt.Sprintf("manager: %+v", w.m.Snapshot(w.now))
}

func (w *world) endAll() {
	for _, c := range w.living() {
		w.gone(c)
	}
	w.run(5 * time.Minute)
	w.tell(path.Tick{})
	if _, ok := w.m.Next(); ok || w.m.Left() > 0 {
		w.t.Fatalf("all connections are closed, but the manager remembers %d things and wants a tick: %v", w.m.Left(), ok)
	}
	for _, id := range slices.Sorted(maps.Keys(w.offers)) {
		w.tell(path.DetourWithdrawn{ID: id})
	}
	w.addrs = []netip.Addr{ip("me"), ip("me6")} // the same network
	w.tellAddrs()
	w.run(3 * time.Hour)
	w.tell(path.Tick{})
	if n := w.m.LeftOfDetours(); n > 0 {
		w.t.Fatalf("all detours are gone for hours, but the manager remembers %d things", n)
	}
}
