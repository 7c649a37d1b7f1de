package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// A path drops or strips all in-band SYNs, while connections to many servers begin. Few of them try it.
func TestBlockedPathCostsFewTries(t *testing.T) {
	for name, refused := range map[string]bool{"dropped": false, "stripped": true} {
		t.Run(name, func(t *testing.T) {
			m := path.New(path.Config{Policy: policy.Detours{Subflows: 2, Order: []path.Kind{path.InBand}}})
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			now, port := start, uint16(20000)
			var tries []time.Duration
			var tell func(ev path.Event)
			tell = func(ev path.Event) {
				var follow []path.Event
				for _, a := range m.Handle(ev, now) {
					if a, ok := a.(path.CreateSubflow); ok && !a.Direct {
						tries = append(tries, now.Sub(start))
						port++
						local := netip.AddrPortFrom(ip("me"), port)
						follow = append(follow, path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: local})
						if refused {
							follow = append(follow, path.SubflowClosed{Token: a.Token, Local: local, Remote: a.Remote})
						}
					}
				}
				for _, ev := range follow {
					tell(ev)
				}
			}
			tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
			tell(path.DetourOffered{Detour: path.Detour{ID: "bob", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}})
			for token := path.Token(1); now.Sub(start) < 4*time.Hour; token++ {
				next := start.Add(time.Duration(token) * 20 * time.Second)
				if token <= 5 {
					next = start.Add(time.Duration(token) * 100 * time.Millisecond)
				}
				for {
					at, ok := m.Next()
					if !ok || at.After(next) {
						break
					}
					now = at
					tell(path.Tick{})
				}
				now = next
				server := netip.AddrFrom4([4]byte{198, 18, byte(token >> 8), byte(token)})
				tell(path.ConnEstablished{Token: token, Local: netip.AddrPortFrom(ip("me"), uint16(token)), Remote: netip.AddrPortFrom(server, 80)})
			}
			for i, at := range tries {
				n := 1
				for n < len(tries)-i && tries[i+n]-at < 10*time.Minute {
					n++
				}
				most := 1
				switch {
				case at < time.Second:
					most = map[bool]int{true: 3, false: 6}[refused] // three at once, then one at a time
				case at < 10*time.Minute:
					most = 3
				}
				if n > most {
					t.Fatalf("%d tries in ten minutes from %v on, want at most %d: %v", n, at, most, tries)
				}
			}
			if len(tries) < 5 {
				t.Errorf("it is not tried again: %v", tries)
			}
			t.Log(tries)
		})
	}
}
