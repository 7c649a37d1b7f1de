package ui

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// TestRouter shows a router's routes: whether the kernel or dcol chooses, and the next hops by number.
func TestRouter(t *testing.T) {
	hop := func(gateway, name string, dead bool) api.NextHop {
		return api.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: name, Dead: dead}
	}
	s := api.Status{Member: "r1", Roles: []string{"router"}, Router: &api.Router{
		Cipher: "speck32", Radix: 4, Decoded: 70, Hashed: 30, Routes: []api.BalancedRoute{
			{Prefix: netip.MustParsePrefix("10.9.0.0/16"), NextHops: []api.NextHop{hop("10.0.0.1", "eth0", false), hop("10.0.1.1", "eth1", false), hop("10.0.2.1", "eth2", true)}},
			{Prefix: netip.MustParsePrefix("fd09::/16"), NextHops: []api.NextHop{{Interface: "eth0"}, {Interface: "eth1"}}, Left: "weights"},
		},
	}}
	var out strings.Builder
	if err := Status(&out, s, time.Now()); err != nil {
		t.Fatal(err)
	}
	const want = `
Router (speck32, radix 4): 70 packets by their ports, 30 hashed
ROUTE        CHOSEN                        NEXT HOPS
10.9.0.0/16  by ports                      0: 10.0.0.1 eth0, 1: 10.0.1.1 eth1, down: 10.0.2.1 eth2
fd09::/16    by the kernel: weights differ  0: eth0, 1: eth1
`
	if got := out.String(); !strings.Contains(strings.Join(strings.Fields(got), " "), strings.Join(strings.Fields(want), " ")) {
		t.Errorf("status:\n%s\nwant\n%s", got, want)
	}
}
