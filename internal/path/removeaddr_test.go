package path_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// TestSignalsWithLostAcks loses 30 % of the acknowledgements, which carry REMOVE_ADDR and MP_PRIO. Nearly all peers
// learn of the address that is gone and of the subflow that carries instead, and the repetition ends.
func TestSignalsWithLostAcks(t *testing.T) {
	const conns, mostMissed, mostSent = 2000, 60, 8 // 2000 * 0.3^4 is 16, and 2000 * 0.3^3 is 54
	random := rand.New(rand.NewPCG(7, 7))
	missedAddr, missedPrio := 0, 0
	for range conns {
		m := path.New(path.Config{Policy: policy.Detours{Subflows: 1}, Rules: []path.Rule{{
			Policy: policy.Mesh{Mode: policy.BackupMode},
		}}})
		now, server := birth, netip.AddrPortFrom(ip("web"), 80)
		sent, knowsAddr, knowsPrio, port := 0, false, false, uint16(50000)
		var tell func(ev path.Event)
		tell = func(ev path.Event) {
			var answers []path.Event
			for _, a := range m.Handle(ev, now) {
				arrives := random.Float64() >= 0.3
				switch a := a.(type) {
				case path.CreateSubflow:
					port++
					local := a.Local
					if !local.IsValid() {
						local = ip("me2")
					}
					from := netip.AddrPortFrom(local, port)
					answers = append(answers, path.SubflowRequested{Token: 1, LocalID: a.LocalID, Local: from},
						path.SubflowEstablished{Token: 1, LocalID: a.LocalID, Local: from, Remote: a.Remote})
				case path.RemoveAddr:
					if a.Local.IsValid() {
						sent++
						knowsAddr = knowsAddr || arrives
					}
				case path.SetBackup:
					sent++
					knowsPrio = knowsPrio || arrives && !a.Backup && a.Local.Addr() == ip("me2")
				}
			}
			for _, ev := range answers {
				tell(ev)
			}
		}
		run := func(d time.Duration) {
			end := now.Add(d)
			for next, ok := m.Next(); ok && !next.After(end); next, ok = m.Next() {
				now = next
				tell(path.Tick{})
			}
			now = end
		}
		tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("me2"), ip("me3")}})
		for name, from := range map[string]string{"wlan0": "me3", "wwan0": "me2"} {
			tell(path.DetourOffered{Detour: path.Detour{ID: path.DetourID(name), Kind: path.Uplink, Waypoint: name, Local: ip(from)}})
		}
		tell(path.ConnEstablished{Token: 1, Local: netip.AddrPortFrom(ip("me"), 5000), Remote: server})
		run(10 * time.Second)
		tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me2")}}) // two uplinks are lost: the third carries
		run(10 * time.Minute)
		if !knowsAddr {
			missedAddr++
		}
		if !knowsPrio {
			missedPrio++
		}
		if sent > mostSent {
			t.Fatalf("%d signals were sent", sent)
		}
		if at, ok := m.Next(); ok && at.Sub(now) < time.Hour {
			t.Fatalf("it is not over: the next step is in %v", at.Sub(now))
		}
	}
	if missedAddr > mostMissed || missedPrio > 2*mostMissed {
		t.Errorf("of %d peers, %d do not know of the lost address, %d not of the priority", conns, missedAddr, missedPrio)
	}
	t.Logf("of %d peers, %d do not know of the lost address, %d not of the priority", conns, missedAddr, missedPrio)
}
