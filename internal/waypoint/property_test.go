package waypoint

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Whatever members ask, however much time passes, and whatever happens to the agent and to the
// table: a grant leads, in the kernel, from that client's port to that server under that member's
// mark, quotas hold, and index and kernel agree.
func TestGrantsHoldInTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHost(t)
		h.config.MappingsPerMember = 5
		h.listening = []netip.AddrPort{netip.MustParseAddrPort("[::]:2")}
		// Through the interface only: rapid asks a *testing.T for its deadline, which fails in a bubble.
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			h.table.Flush()
			w := h.start(t)
			defer func() { mustClose(t, w) }()
			flushed := false
			rt.Repeat(map[string]func(*rapid.T){
				"map": func(rt *rapid.T) {
					p := peer(rapid.SampledFrom([]string{"alice", "bob", "carol"}).Draw(rt, "member"),
						clientNumber(rapid.IntRange(0, 2).Draw(rt, "client")))
					server := serverNumber(rapid.IntRange(0, 9).Draw(rt, "server"))
					proposed := rapid.Uint16Range(0, 4).Draw(rt, "proposed")
					grant, refusal := w.Map(context.Background(), p, wire.MapRequest{Server: server, Proposed: proposed})
					if refusal != nil {
						if refusal.Code != wire.QuotaMappings {
							rt.Fatal(refusal)
						}
						return
					}
					if grant.Port == 2 {
						rt.Fatal("granted a listener's port")
					}
					checkGrant(rt, h, w, p, server, grant)
				},
				"time passes": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 300).Draw(rt, "seconds")) * time.Second)
				},
				"the agent restarts": func(*rapid.T) {
					mustClose(t, w)
					w = h.start(t)
				},
				"the firewall is reloaded": func(*rapid.T) {
					h.table.Flush()
					flushed = true
				},
				"a member is expelled": func(rt *rapid.T) {
					if err := w.Expel(rapid.SampledFrom([]string{"alice", "bob"}).Draw(rt, "member")); err != nil {
						rt.Fatal(err)
					}
				},
				"": func(rt *rapid.T) {
					if flushed {
						time.Sleep(2 * tableCheck) // the table is back
						flushed = false
					}
					checkAgreement(rt, h, w)
				},
			})
		})
	})
}

func checkGrant(t *rapid.T, h *fakeHost, w *Waypoint, p session.Peer, server netip.AddrPort, grant wire.MapGrant) {
	t.Helper()
	state, _, err := h.table.Load()
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[rules.MemberID]string)
	for _, m := range state.Members {
		names[m.ID] = m.Name
	}
	for _, m := range state.Mappings {
		if m.Client == p.Addr && m.Port == grant.Port {
			if m.Server != server || names[m.Member] != p.Name || m.Left < grant.Lease {
				t.Fatalf("granted %+v to %s for %v, but the kernel has %+v of %s", grant, p.Name, server, m, names[m.Member])
			}
			return
		}
	}
	t.Fatalf("granted %+v, but the kernel has %+v", grant, state.Mappings)
}

func checkAgreement(t *rapid.T, h *fakeHost, w *Waypoint) {
	t.Helper()
	state, same, err := h.table.Load()
	if err != nil || !same {
		t.Fatalf("the table: %v, %v", same, err)
	}
	list, err := w.Mappings()
	if err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(m MappingSnapshot) bool { return m.Left <= 0 }) // waits for its grace
	if len(list) != len(state.Mappings) {
		t.Fatalf("the index has %+v\nthe kernel %+v", list, state.Mappings)
	}
	held := make(map[string]int)
	for i, m := range list {
		k := state.Mappings[i] // both are sorted by client and port
		if m.Client != k.Client || m.Port != k.Port || m.Server != k.Server || (m.Left-k.Left).Abs() > lease.ExpiryGrace {
			t.Fatalf("the index has %+v, the kernel %+v", m, k)
		}
		if held[m.Member]++; held[m.Member] > h.config.MappingsPerMember {
			t.Fatalf("%s holds %d mappings", m.Member, held[m.Member])
		}
	}
}
