package path_test

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
)

// TestWorld lets anything happen in any order, and checks the laws at each action. Then the world heals. Every
// connection must get what it should have, and nothing more may happen. At the end nothing may be remembered.
func TestWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"":                 func(*rapid.T) { w.run(0) },
			"connect":          w.connect,
			"connect again":    w.connect,
			"close":            w.close,
			"time passes":      w.timePasses,
			"a while passes":   w.timePasses,
			"traffic":          w.traffic,
			"busy traffic":     w.busy,
			"busy again":       w.busy,
			"subflow dies":     w.subflowDies,
			"subflow vanishes": w.vanishes,
			"peer joins":       w.peerJoins,
			"offer":            w.offerGeneral,
			"withdraw":         w.withdraw,
			"mapping moves":    w.mappingMoves,
			"waypoint dies":    w.waypointDies,
			"waypoint back":    w.waypointBack,
			"waypoint leaves":  w.waypointLeaves,
			"detour moves":     w.detourMoves,
			"steer":            w.steer,
			"waypoint loaded":  w.waypointLoaded,
			"mood changes":     func(t *rapid.T) { w.moody = !w.moody; w.limit = rapid.IntRange(0, 8).Draw(t, "limit") },
			"events are lost":  func(*rapid.T) { w.deaf = true; w.unsure() },
			"lost is found":    func(*rapid.T) { w.hear() },
			"addresses":        w.addressesChange,
			"moves on":         w.movesOn,
			"tunnel address":   w.tunnelAddress,
			"path changes":     w.pathChanges,
			"agent restarts":   w.restart,
			"announcement":     w.announce,
		})
		w.heal()
		w.wantPaths()
		w.endAll()
	})
}

// servers lists the servers by name, with their differences.
var servers = []string{"web:80", "web:80", "web:443", "web6:443", "web2:80", "bob:80", "excluded", "balancer", "ours"}

func (w *world) connect(t *rapid.T) {
	if len(w.conns) >= 8 {
		return
	}
	w.port++
	c := &wconn{token: path.Token(len(w.past) + 1), ids: make(map[uint8]bool)}
	name := rapid.SampledFrom(servers).Draw(t, "server")
	switch name {
	case "excluded":
		c.remote, c.excluded = netip.MustParseAddrPort("203.0.113.99:80"), true
	case "balancer":
		c.remote = netip.MustParseAddrPort("203.0.113.90:80")
	case "ours":
		c.remote, c.serverSide = netip.AddrPortFrom(ip("dave"), w.port), true
	default:
		host, port, _ := strings.Cut(name, ":")
		c.remote = netip.AddrPortFrom(ip(host), map[string]uint16{"80": 80, "443": 443}[port])
	}
	for _, a := range w.addrs {
		if a.Is4() == c.remote.Addr().Is4() && !tunnel(a) {
			c.local = netip.AddrPortFrom(a, w.port)
		}
	}
	if !c.local.IsValid() {
		return
	}
	c.server, c.tls = c.remote, c.remote.Port() == 443
	c.subflows = []*wsub{{local: c.local, remote: c.remote, up: true, direct: true, ours: true, told: true, trip: firstTrip}}
	c.unsure = w.deaf
	w.conns[c.token], w.past[c.token] = c, c
	ev := path.ConnEstablished{
		Token: c.token, Local: c.local, Remote: c.remote, ServerSide: c.serverSide, DenyJoinInitial: name == "balancer",
	}
	if !w.deaf {
		w.put(pending{w.now.Add(kernelDelay), true, func() { c.denies = ev.DenyJoinInitial; w.tell(ev) }})
	}
}

// some returns a random element, or nil if there is none.
func some[T any](t *rapid.T, label string, from []*T) *T {
	if len(from) == 0 {
		return nil
	}
	return rapid.SampledFrom(from).Draw(t, label)
}

func (w *world) living() []*wconn {
	return slices.SortedFunc(maps.Values(w.conns), func(a, b *wconn) int { return int(a.token) - int(b.token) })
}

// close ends a connection. Its subflows end before it or together with it.
func (w *world) close(t *rapid.T) {
	c := some(t, "connection", w.living())
	if c == nil {
		return
	}
	if rapid.Bool().Draw(t, "subflows first") {
		for _, s := range slices.Clone(c.subflows) {
			w.end(c, s)
		}
	}
	w.later(time.Duration(rapid.IntRange(0, 400).Draw(t, "ms"))*time.Millisecond, func() {
		if w.conns[c.token] == c {
			w.gone(c)
		}
	})
}

func (w *world) gone(c *wconn) {
	delete(w.conns, c.token)
	c.subflows = nil
	clear(c.ids)
	w.says(path.ConnClosed{Token: c.token})
}

func (w *world) timePasses(t *rapid.T) {
	ms := rapid.SampledFrom([]int{1, 10, 100, 300, 1000, 5000, 20_000, 400_000}).Draw(t, "ms")
	w.run(time.Duration(ms) * time.Millisecond)
}

// traffic moves some bytes on working subflows, and samples all subflows.
func (w *world) traffic(t *rapid.T) {
	for _, c := range w.living() {
		for _, s := range c.subflows {
			dead := s.detour != nil && w.dead[s.detour.Waypoint] || !w.here(s)
			s.stuck = dead && rapid.Bool().Draw(t, "sending")
			if s.up && !dead && !s.doomed && rapid.Bool().Draw(t, "moves") {
				s.received += 1000
			}
		}
	}
	w.measureAll()
}

// busy lets data arrive on one connection for some seconds, as bulk or from time to time, while the Manager samples
// it closely. Some of its paths lose much.
func (w *world) busy(t *rapid.T) {
	c := some(t, "connection", slices.DeleteFunc(w.living(), func(c *wconn) bool { return c.serverSide || len(c.subflows) < 2 }))
	if c == nil {
		return
	}
	bad := rapid.SampledFrom([][]string{nil, {""}, {"bob"}, {"carol"}, {"bob", "carol"}, {"", "bob"}}).Draw(t, "bad")
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	each := rapid.SampledFrom([]uint64{1, 30}).Draw(t, "segments")
	upTo := uint64(0)
	for range rapid.SampledFrom([]int{10, 60, 150}).Draw(t, "tenths of a second") {
		w.run(100 * time.Millisecond)
		if w.conns[c.token] != c {
			return
		}
		ev := path.Measured{}
		for _, s := range c.subflows {
			if !s.up {
				continue
			}
			if w.comesThrough(s) && !s.doomed && !s.backup {
				s.segments += each
				s.received += 1000 * each
				waypoint := ""
				if s.detour != nil {
					waypoint = s.detour.Waypoint
				}
				lost := false
				for range each {
					if slices.Contains(bad, waypoint) && random.IntN(20) == 0 {
						lost, s.loses = true, true
					}
					if lost {
						s.late++
					}
				}
			}
			ev.Samples = append(ev.Samples, w.measured(c, s).Samples...)
		}
		upTo += 1000
		ev.Progress = []path.Progress{{Token: c.token, Received: upTo}}
		w.tell(ev)
	}
}

func (w *world) measureAll() {
	var ev path.Measured
	for _, c := range w.living() {
		for _, s := range c.subflows {
			if s.up && !c.serverSide {
				ev.Samples = append(ev.Samples, w.measured(c, s).Samples...)
			}
		}
	}
	ev.Complete = true
	w.tell(ev)
}

// vanishes resets a subflow without an event, as the kernel does after a failed checksum. It spares a connection's
// last subflow.
func (w *world) vanishes(t *rapid.T) {
	c := some(t, "connection", w.living())
	if c == nil {
		return
	}
	s := some(t, "subflow", c.subflows)
	alive := func(x *wsub) bool { return x != s && x.up && !x.doomed }
	if s == nil || !s.up || !slices.ContainsFunc(c.subflows, alive) {
		return
	}
	c.subflows = slices.DeleteFunc(c.subflows, func(x *wsub) bool { return x == s })
	c.unsure = true // the Manager will notice in a sample
	w.hears(c, s)
	w.inband.ends(w, c, s)
}

func (w *world) measured(c *wconn, s *wsub) path.Measured {
	if (s.direct || s.passes) && s.received > 0 {
		c.heard = true
	}
	sample := path.Sample{
		Token: c.token, Local: s.local, Remote: s.remote, BytesReceived: s.received, MinRTT: max(s.trip, time.Millisecond),
		SegsIn: s.segments, DataSegsIn: s.segments, OutOfOrder: s.late, LastSent: time.Hour,
	}
	if s.stuck {
		sample.Backoff = 6
	}
	return path.Measured{Samples: []path.Sample{sample}}
}

func (w *world) subflowDies(t *rapid.T) {
	if c := some(t, "connection", w.living()); c != nil {
		if s := some(t, "subflow", c.subflows); s != nil {
			w.end(c, s)
		}
	}
}

func (w *world) peerJoins(t *rapid.T) {
	c := some(t, "connection", w.living())
	if c == nil || slices.ContainsFunc(c.subflows, func(s *wsub) bool { return s.remote.Addr() == ip("dave") }) {
		return
	}
	if !c.remote.Addr().Is4() || c.serverSide || !slices.Contains(w.addrs, c.local.Addr()) {
		return
	}
	w.port++
	s := &wsub{local: c.local, remote: netip.AddrPortFrom(ip("dave"), w.port), up: true, trip: firstTrip}
	c.subflows = append(c.subflows, s)
	w.says(path.SubflowEstablished{Token: c.token, Local: s.local, Remote: s.remote})
}

// announce lets the balancer's server announce its own address.
func (w *world) announce(t *rapid.T) {
	c := some(t, "connection", w.living())
	if c == nil || !c.denies || c.server != c.remote || w.deaf {
		return
	}
	to := netip.AddrPortFrom(ip("carol"), 80)
	w.put(pending{w.now.Add(kernelDelay), true, func() {
		c.server = to
		w.tell(path.AddrAnnounced{Token: c.token, Remote: to})
	}})
}
