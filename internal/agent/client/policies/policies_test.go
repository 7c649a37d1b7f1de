package policies

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

// A policy without a number of subflows has that of [client], also after a reload changes it. A number of its own stays.
func TestSubflowsFollowReloads(t *testing.T) {
	client := config.Client{Subflows: 2}
	m := path.New(PathManager(&config.Config{Client: client, Policies: []config.Policy{
		{Use: config.UseDetours, Ports: []int{80}}, {Use: config.UseDetours, Ports: []int{81}, Subflows: 2},
	}}))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	opened := make(map[path.Token]int)
	tell := func(ev path.Event) {
		for _, a := range m.Handle(ev, now) {
			if a, ok := a.(path.CreateSubflow); ok {
				opened[a.Token]++
			}
		}
	}
	tell(path.LocalAddrs{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	for _, name := range []string{"bob", "carol"} {
		tell(path.DetourOffered{Detour: path.Detour{ID: path.DetourID(name), Kind: path.InBand, Waypoint: name, Remote: netip.MustParseAddrPort(map[string]string{"bob": "10.0.1.1:0", "carol": "10.0.2.1:0"}[name])}})
	}
	const follows, stays = 1, 2
	connect := func(token path.Token, port uint16) {
		tell(path.ConnEstablished{Token: token, Local: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), 5000+uint16(token)), Remote: netip.AddrPortFrom(netip.MustParseAddr("10.0.4.1"), port)})
	}
	connect(follows, 80)
	connect(stays, 81)
	if opened[follows] != 1 || opened[stays] != 1 {
		t.Fatalf("before: %v", opened)
	}
	client.Subflows = 3
	tell(path.Reconfigured{Policy: Client(client).Policy})
	if opened[follows] != 2 || opened[stays] != 1 {
		t.Errorf("after [client] has 3: %v", opened)
	}
}
