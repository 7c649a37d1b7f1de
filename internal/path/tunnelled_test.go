package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// A connection that an earlier agent's tunnel carried is recognised by its address after the tunnel is gone, and gets
// only paths in tunnels. A connection whose address this host just lost gets others.
func TestTunnelOfAnEarlierAgent(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11")}
	me, converter := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("192.0.2.2:5124")
	for local, outside := range map[string]bool{"10.192.0.2:5000": false, "10.7.0.1:5000": true} {
		m := path.New(path.Config{Policy: policy.Detours{Subflows: 2}, Tunnels: ranges})
		now, created := time.Now(), []path.CreateSubflow(nil)
		handle := func(ev path.Event) {
			for _, a := range m.Handle(ev, now) {
				if s, is := a.(path.CreateSubflow); is {
					created = append(created, s)
				}
			}
		}
		handle(path.LocalAddrs{Addrs: []netip.Addr{me}})
		handle(path.Resync{Conns: []path.LiveConn{{Token: 1, Local: netip.MustParseAddrPort(local), Remote: converter}}})
		handle(path.DetourOffered{Detour: path.Detour{ID: "i", Kind: path.InBand, Waypoint: "carol", Remote: netip.MustParseAddrPort("192.0.2.3:0")}})
		for range 5 {
			now = now.Add(time.Second)
			handle(path.Tick{})
		}
		if len(created) > 0 != outside {
			t.Errorf("from %s: %+v", local, created)
		}
		if outside {
			continue
		}
		again := netip.MustParseAddr("10.192.0.3")
		handle(path.LocalAddrs{Addrs: []netip.Addr{me, again}, Tunnels: []netip.Addr{again}})
		handle(path.DetourOffered{Detour: path.Detour{ID: "w", Kind: path.WireGuard, Waypoint: "bob", Local: again, Endpoint: converter.Addr()}})
		if len(created) != 1 || !created[0].Direct || created[0].Local != again {
			t.Errorf("in a new tunnel to the same host: %+v", created)
		}
	}
}

// The next agent brings a connection to a converter into its own tunnel to the converter's host, and counts that as
// the direct path. This also holds if the destination is excluded from detours, or is another address of that host.
func TestNextTunnelToTheSameHost(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	me4, me6 := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")
	for name, x := range map[string]struct {
		converter, before, again, third netip.Addr
		exclude                         string
	}{
		"excluded":             {four, netip.MustParseAddr("10.192.0.2"), netip.MustParseAddr("10.192.0.3"), netip.MustParseAddr("10.192.0.9"), "192.0.2.0/24"},
		"other family":         {six, netip.MustParseAddr("fd64::2"), netip.MustParseAddr("fd64::3"), netip.MustParseAddr("fd64::9"), "203.0.113.0/24"},
		"other address":        {netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("10.192.0.2"), netip.MustParseAddr("10.192.0.3"), netip.MustParseAddr("10.192.0.9"), "203.0.113.0/24"},
		"other, and excluded":  {six, netip.MustParseAddr("fd64::2"), netip.MustParseAddr("fd64::3"), netip.MustParseAddr("fd64::9"), "2001:db8::/32"},
		"excluded, and no own": {four, netip.MustParseAddr("10.192.0.2"), netip.Addr{}, netip.MustParseAddr("10.192.0.9"), "192.0.2.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			m := path.New(path.Config{
				Policy: policy.Detours{Subflows: 3}, Exclude: []netip.Prefix{netip.MustParsePrefix(x.exclude)},
				Tunnels: []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11"), netip.MustParsePrefix("fd64::/48")},
			})
			now, created := time.Now(), []path.CreateSubflow(nil)
			handle := func(ev path.Event) {
				for _, a := range m.Handle(ev, now) {
					if s, is := a.(path.CreateSubflow); is {
						created = append(created, s)
					}
				}
			}
			server, first := netip.AddrPortFrom(x.converter, 5124), netip.AddrPortFrom(x.before, 5000)
			own := []netip.Addr{x.third}
			if x.again.IsValid() {
				own = append(own, x.again)
			}
			handle(path.LocalAddrs{Addrs: append([]netip.Addr{me4, me6}, own...), Tunnels: own})
			handle(path.WaypointAddrs{Waypoint: "bob", Addrs: []netip.Addr{four, x.converter}})
			handle(path.Resync{Conns: []path.LiveConn{{Token: 1, Local: first, Remote: server, Subflows: []path.LiveSubflow{{Local: first, Remote: server}}}}})
			handle(path.LocalAddrs{Addrs: append([]netip.Addr{me4, me6}, own...), Tunnels: own}) // the agent reads the addresses again
			handle(path.DetourOffered{Detour: path.Detour{ID: "i", Kind: path.InBand, Waypoint: "carol", Remote: netip.MustParseAddrPort("203.0.113.3:0")}})
			if x.again.IsValid() {
				handle(path.DetourOffered{Detour: path.Detour{ID: "w", Kind: path.WireGuard, Waypoint: "bob", Local: x.again, Endpoint: four}})
				if len(created) != 1 || !created[0].Direct || created[0].Local != x.again || created[0].Remote != server {
					t.Fatalf("in a new tunnel to the same host: %+v", created)
				}
				joined := netip.AddrPortFrom(x.again, 6000)
				handle(path.SubflowRequested{Token: 1, LocalID: created[0].LocalID, Local: joined})
				handle(path.SubflowEstablished{Token: 1, LocalID: created[0].LocalID, Local: joined, Remote: server})
			}
			created = nil
			handle(path.DetourOffered{Detour: path.Detour{ID: "c", Kind: path.WireGuard, Waypoint: "carol", Local: x.third, Endpoint: netip.MustParseAddr("203.0.113.3")}})
			for range 5 {
				now = now.Add(time.Second)
				handle(path.Tick{})
			}
			excluded := netip.MustParsePrefix(x.exclude).Contains(x.converter)
			if want := map[bool]int{true: 0, false: 1}[excluded]; len(created) != want || want == 1 && created[0].Waypoint != "carol" {
				t.Errorf("of detours through another waypoint: %+v", created)
			}
			for _, s := range m.Snapshot(now).Conns[0].Subflows {
				if s.Local.Addr() == x.again && s.Kind != "direct" {
					t.Errorf("the subflow in the tunnel to the converter's host is %+v", s)
				}
			}
			// A later agent finds the same.
			next := path.New(path.Config{Policy: policy.Detours{Subflows: 3}, Exclude: []netip.Prefix{netip.MustParsePrefix(x.exclude)}, Tunnels: []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11"), netip.MustParsePrefix("fd64::/48")}})
			if !x.again.IsValid() {
				return
			}
			again := netip.AddrPortFrom(x.again, 6000)
			for _, ev := range []path.Event{
				path.LocalAddrs{Addrs: append([]netip.Addr{me4, me6}, own...), Tunnels: own},
				path.Resync{Conns: []path.LiveConn{{Token: 1, Local: first, Remote: server, Subflows: []path.LiveSubflow{{LocalID: 1, Local: again, Remote: server}}}}},
				path.WaypointAddrs{Waypoint: "bob", Addrs: []netip.Addr{four, x.converter}},
				path.DetourOffered{Detour: path.Detour{ID: "w", Kind: path.WireGuard, Waypoint: "bob", Local: x.again, Endpoint: four}},
			} {
				for _, a := range next.Handle(ev, now) {
					t.Logf("%#v leads to %#v", ev, a)
				}
			}
			if s := next.Snapshot(now).Conns[0].Subflows; len(s) != 1 || s[0].Kind != "direct" {
				t.Errorf("the next agent takes the subflow for %+v", s)
			}
		})
	}
}

// An agent that follows another gets the same address in its tunnel. Connections then get all that they need, whether
// the agent first hears of the tunnel or of the address.
func TestSameTunnelAgain(t *testing.T) {
	me, inside := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("10.192.0.2")
	converter := netip.MustParseAddrPort("192.0.2.2:5124")
	for name, exclude := range map[string][]netip.Prefix{"excluded": {netip.PrefixFrom(converter.Addr(), 32)}, "not excluded": nil} {
		for _, addressFirst := range []bool{true, false} {
			m := path.New(path.Config{
				Policy: policy.Detours{Subflows: 3}, Exclude: exclude, Tunnels: []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11")},
			})
			now := time.Now()
			handle := func(ev path.Event) {
				for _, a := range m.Handle(ev, now) {
					switch a.(type) {
					case path.CreateSubflow, path.DestroySubflow, path.RemoveAddr:
						t.Errorf("%s: %#v leads to %#v", name, ev, a)
					}
				}
			}
			var live path.Resync
			samples := path.Measured{Complete: true}
			for i := range 2 { // the second is not the first one from that address
				from := netip.AddrPortFrom(inside, uint16(5000+i))
				live.Conns = append(live.Conns, path.LiveConn{Token: path.Token(i + 1), Local: from, Remote: converter, Subflows: []path.LiveSubflow{{Local: from, Remote: converter}}})
				samples.Samples = append(samples.Samples, path.Sample{Token: path.Token(i + 1), Local: from, Remote: converter, Unacked: 1})
			}
			pass := func() {
				for i := range 10 {
					now = now.Add(time.Second)
					for j := range samples.Samples {
						samples.Samples[j].Backoff = i // nothing gets through
					}
					handle(samples)
					handle(path.Tick{})
				}
			}
			handle(path.LocalAddrs{Addrs: []netip.Addr{me}})
			handle(live)
			handle(path.LocalAddrs{Addrs: []netip.Addr{me}}) // the agent reads the addresses again
			handle(path.WaypointAddrs{Waypoint: "bob", Addrs: []netip.Addr{converter.Addr()}})
			handle(path.DetourOffered{Detour: path.Detour{ID: "i", Kind: path.InBand, Waypoint: "carol", Remote: netip.MustParseAddrPort("192.0.2.3:0")}})
			pass()
			there := path.LocalAddrs{Addrs: []netip.Addr{me, inside}, Tunnels: []netip.Addr{inside}}
			offer := path.DetourOffered{Detour: path.Detour{ID: "w", Kind: path.WireGuard, Waypoint: "bob", Local: inside, Endpoint: converter.Addr()}}
			if addressFirst {
				handle(there)
			}
			handle(offer)
			handle(there)
			pass()
			for _, c := range m.Snapshot(now).Conns {
				if s := c.Subflows; len(s) != 1 || s[0].Kind != "direct" {
					t.Errorf("%s: a connection has %+v", name, s)
				}
			}
		}
	}
}

// A converter behind a NAT is reached at its end of the tunnel. No detour leads there.
func TestConverterAtTheEndOfTheTunnel(t *testing.T) {
	me, inside, other := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("10.192.0.2"), netip.MustParseAddr("10.200.0.2")
	for remote, want := range map[string]int{"10.192.0.1:5124": 0, "192.0.2.2:5124": 1} {
		m := path.New(path.Config{Policy: policy.Detours{Subflows: 3}, Tunnels: []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11")}})
		now, created := time.Now(), 0
		for _, ev := range []path.Event{
			path.LocalAddrs{Addrs: []netip.Addr{me, inside, other}, Tunnels: []netip.Addr{inside, other}},
			path.WaypointAddrs{Waypoint: "bob", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
			path.DetourOffered{Detour: path.Detour{ID: "b", Kind: path.WireGuard, Waypoint: "bob", Local: inside, Endpoint: netip.MustParseAddr("192.0.2.2")}},
			path.DetourOffered{Detour: path.Detour{ID: "c", Kind: path.WireGuard, Waypoint: "carol", Local: other, Endpoint: netip.MustParseAddr("192.0.2.3")}},
			path.ConnEstablished{Token: 1, Local: netip.AddrPortFrom(inside, 5000), Remote: netip.MustParseAddrPort(remote)},
		} {
			for _, a := range m.Handle(ev, now) {
				if _, is := a.(path.CreateSubflow); is {
					created++
				}
			}
		}
		if created != want {
			t.Errorf("a connection to %s got %d detours, want %d", remote, created, want)
		}
	}
}
