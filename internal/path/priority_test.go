package path_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// TestPrioritiesGetThrough loses 30 % of all MP_PRIO while a server sends. The preferred uplink must carry although
// the connection began on the other one. The server obeys what it has heard.
func TestPrioritiesGetThrough(t *testing.T) {
	const loss, connections = 0.3, 160
	again := 0
	for seed := range uint64(connections) {
		random := rand.New(rand.NewPCG(seed, 0))
		m := path.New(path.Config{ByWorth: true, Policy: policy.Detours{Subflows: 1}, Rules: []path.Rule{{
			Policy: policy.Mesh{Mode: policy.BackupMode, Uplinks: []string{"wlan0", "wwan0"}},
		}}})
		now, server := birth, netip.AddrPortFrom(ip("web"), 80)
		mobile, wifi := netip.AddrPortFrom(ip("me2"), 5000), netip.AddrPortFrom(ip("me"), 5001)
		heard := map[netip.AddrPort]bool{wifi: true} // what the server considers a backup
		told := 0
		tell := func(ev path.Event) {
			for _, a := range m.Handle(ev, now) {
				if a, ok := a.(path.SetBackup); ok {
					told++
					if random.Float64() >= loss {
						heard[a.Local] = a.Backup
					}
				}
			}
		}
		tell(path.LocalAddrs{Addrs: []netip.Addr{wifi.Addr(), mobile.Addr()}})
		tell(path.DetourOffered{Detour: path.Detour{ID: "w", Kind: path.Uplink, Waypoint: "wlan0", Local: wifi.Addr()}})
		tell(path.DetourOffered{Detour: path.Detour{ID: "g", Kind: path.Uplink, Waypoint: "wwan0", Local: mobile.Addr()}})
		tell(path.ConnEstablished{Token: 1, Local: mobile, Remote: server})
		tell(path.SubflowRequested{Token: 1, LocalID: 1, Local: wifi})
		tell(path.SubflowEstablished{Token: 1, LocalID: 1, Local: wifi, Remote: server})
		one := path.Sample{Token: 1, Local: mobile, Remote: server, MinRTT: time.Millisecond, LastSent: time.Hour}
		two := path.Sample{Token: 1, Local: wifi, Remote: server, MinRTT: time.Millisecond, LastSent: time.Hour}
		upTo := uint64(0)
		for i := range 600 { // for a minute
			now = now.Add(100 * time.Millisecond)
			if next, ok := m.Next(); ok && !next.After(now) {
				tell(path.Tick{})
			}
			carries, idle := &one, &two
			if !heard[wifi] && (heard[mobile] || i%2 == 0) { // both carry if both have full priority
				carries, idle = &two, &one
			}
			bulkOver(carries, idle)
			upTo += 14000
			tell(path.Measured{Samples: []path.Sample{one, two}, Complete: i%10 == 0, Progress: []path.Progress{{Token: 1, Received: upTo}}})
		}
		if !heard[mobile] || heard[wifi] {
			t.Errorf("connection %d: after %d messages the server has the backups %v", seed, told, heard)
		}
		if told > 2 {
			again++
		}
	}
	if again == 0 {
		t.Error("nothing was told again")
	}
}
