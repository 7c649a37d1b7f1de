package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// A connection that an earlier agent's tunnel carried is known by its address when the tunnel is gone, and gets no path
// outside of tunnels. One whose address this host merely lost does.
func TestTunnelOfAnEarlierAgent(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11")}
	me, converter := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("192.0.2.2:5124")
	for local, outside := range map[string]bool{"10.192.0.2:5000": false, "10.7.0.1:5000": true} {
		m := path.New(path.Config{Policy: path.DetourPolicy{Subflows: 2}, Tunnels: ranges})
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
