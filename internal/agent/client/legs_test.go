package client

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/path"
)

const controller = "controller@192.0.2.9:45674"

var throughBob = path.CreateSubflow{
	Kind: path.Mapped, Waypoint: "bob", Remote: netip.MustParseAddrPort("198.51.100.7:40000"), Server: waysServer,
}

// TestLegsAsked: a path server chooses the ports of detours where a policy says so, and of no other subflows.
func TestLegsAsked(t *testing.T) {
	direct, port, other := throughBob, throughBob, throughBob
	direct.Direct, port.Kind, other.Server = true, path.Port, netip.MustParseAddrPort("192.0.2.1:80")
	ofPort := func(p *config.Policy) { p.Ports = []int{443} }
	for name, tc := range map[string]struct {
		policy config.Policy
		change func(*config.Policy)
		join   path.CreateSubflow
		want   string
	}{
		"detours":              {config.Policy{Use: config.UseDetours, Server: controller}, ofPort, throughBob, controller},
		"paths and detours":    {config.Policy{Use: config.UsePaths, Server: controller, Detours: true}, ofPort, throughBob, controller},
		"paths only":           {config.Policy{Use: config.UsePaths, Server: controller}, ofPort, throughBob, ""},
		"without path server":  {config.Policy{Use: config.UsePaths, Detours: true}, ofPort, throughBob, ""},
		"another server":       {config.Policy{Use: config.UseDetours, Server: controller}, ofPort, other, ""},
		"the direct path":      {config.Policy{Use: config.UseDetours, Server: controller}, ofPort, direct, ""},
		"another port":         {config.Policy{Use: config.UsePaths, Server: controller, Detours: true}, ofPort, port, ""},
		"of one cgroup at all": {config.Policy{Use: config.UseDetours, Server: controller}, func(p *config.Policy) { p.Cgroup = "/sys/fs/cgroup/a" }, throughBob, controller},
	} {
		tc.change(&tc.policy)
		w := newWays([]config.Policy{tc.policy}, nil)
		if got := w.askedOf(tc.join); got != tc.want {
			t.Errorf("%s: %q is asked, want %q", name, got, tc.want)
		}
		if n, _ := w.wants(waysServer, "", 0); tc.policy.Use == config.UseDetours && n != 0 {
			t.Errorf("%s: %d paths are searched", name, n)
		}
	}
}

// TestLegsAwaited: the first subflows wait for the path server, later ones use what it answered, also while it is asked again.
func TestLegsAwaited(t *testing.T) {
	w := newWays(nil, nil)
	now := time.Unix(1000, 0)
	if waits, search := w.await(throughBob, now); !waits || !search {
		t.Error("the first does not wait")
	}
	if waits, search := w.await(throughBob, now); !waits || search {
		t.Error("the second does not wait for the same answer")
	}
	if waited := w.takeLegs(legsOf(throughBob), [][]uint16{{61000, 61001}}, nil, now); len(waited) != 2 {
		t.Errorf("%d have waited", len(waited))
	}
	if got, only := w.candidates(throughBob); !slices.Equal(got, []uint16{61000, 61001}) || only {
		t.Errorf("ports %v, only %t", got, only)
	}
	for after, want := range map[time.Duration]bool{renewAfter - 1: false, renewAfter: true} {
		if waits, search := w.await(throughBob, now.Add(after)); waits || search != want {
			t.Errorf("after %v: waits %t, search %t", after, waits, search)
		}
		w.legs[legsOf(throughBob)].searching = false
	}
	if w.staleLegs(); len(w.legs) != 0 {
		t.Error("ports stay although routes have changed")
	}
}

// TestLegsWithoutPathServer: if the path server is gone, detours use what they have, or any port.
func TestLegsWithoutPathServer(t *testing.T) {
	w := newWays(nil, nil)
	now, gone := time.Unix(1000, 0), errors.New("no answer")
	w.await(throughBob, now)
	if waited := w.takeLegs(legsOf(throughBob), nil, gone, now); len(waited) != 1 {
		t.Errorf("%d have waited", len(waited))
	}
	if got, only := w.candidates(throughBob); got != nil || only {
		t.Errorf("ports %v, only %t", got, only)
	}
	if waits, search := w.await(throughBob, now.Add(askAgain-1)); waits || search {
		t.Errorf("waits %t, search %t at once after an error", waits, search)
	}
	if waits, search := w.await(throughBob, now.Add(askAgain)); waits || !search {
		t.Errorf("waits %t, search %t a while after an error", waits, search)
	}
	w.takeLegs(legsOf(throughBob), [][]uint16{{61000}}, nil, now)
	w.takeLegs(legsOf(throughBob), nil, gone, now)
	if got, _ := w.candidates(throughBob); !slices.Equal(got, []uint16{61000}) {
		t.Errorf("an error leaves the ports %v", got)
	}
}

// TestLegsTakeTurns: connections to one port of a server take different paths through one waypoint, also after a renewal.
func TestLegsTakeTurns(t *testing.T) {
	w := newWays(nil, nil)
	now := time.Unix(1000, 0)
	w.await(throughBob, now)
	paths := [][]uint16{{61000, 61001}, {62000, 62001}, {63000}}
	w.takeLegs(legsOf(throughBob), paths, nil, now)
	for i, want := range [][]uint16{
		{61000, 61001, 62000, 62001, 63000}, {62000, 62001, 63000, 61000, 61001}, {63000, 61000, 61001, 62000, 62001}, {61000, 61001, 62000, 62001, 63000},
	} {
		if got, only := w.candidates(throughBob); !slices.Equal(got, want) || only {
			t.Errorf("subflow %d: ports %v, want %v", i+1, got, want)
		}
		if i == 1 {
			w.takeLegs(legsOf(throughBob), paths, nil, now.Add(renewAfter))
		}
	}
	w.takeLegs(legsOf(throughBob), nil, nil, now)
	if got, _ := w.candidates(throughBob); got != nil {
		t.Errorf("without paths: ports %v", got)
	}
}

// TestLegsAreBounded forgets the detour that was asked about least lately.
func TestLegsAreBounded(t *testing.T) {
	w := newWays(nil, nil)
	join := func(i int) path.CreateSubflow {
		a := throughBob
		a.Server = netip.AddrPortFrom(waysServer.Addr(), uint16(i+1))
		return a
	}
	for i := range mostWays {
		now := time.Unix(int64(1000+i), 0)
		w.await(join(i), now)
		if i > 0 {
			w.takeLegs(legsOf(join(i)), nil, nil, now)
		}
	}
	w.await(join(mostWays), time.Unix(5000, 0))
	if len(w.legs) != mostWays || w.legs[legsOf(join(0))] == nil || w.legs[legsOf(join(1))] != nil {
		t.Errorf("%d detours are known", len(w.legs))
	}
}

// TestPortsOfDetours: a detour comes from a port that was chosen, and from any other if these are taken.
func TestPortsOfDetours(t *testing.T) {
	kernel := mptcptest.New()
	kernel.SetUserspacePM(true)
	kernel.SetServerLimit(8)
	local := netip.MustParseAddr("10.0.0.1")
	picker, err := newPortPicker()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{kernel: kernel, ports: picker, ways: newWays(nil, nil)}
	h.ways.await(throughBob, time.Unix(1000, 0))
	h.ways.takeLegs(legsOf(throughBob), [][]uint16{{61000, 61001}}, nil, time.Unix(1000, 0))
	kernel.Occupy(netip.AddrPortFrom(local, 61000))
	for i, chosen := range []bool{true, false} {
		a := throughBob
		a.Token, a.LocalID, a.Local = path.Token(kernel.Connect(local, waysServer)), uint8(i+1), local
		h.ways.legs[legsOf(a)] = h.ways.legs[legsOf(throughBob)]
		from, err := h.join(a, func(netip.AddrPort) error { return nil }, func(netip.AddrPort) {})
		if err != nil || (from.Port() == 61001) != chosen {
			t.Errorf("subflow %d from %v: %v", i+1, from, err)
		}
	}
}

// TestFirstLegFound: without a path server, the policy paths has probes find ports to the waypoint of a detour, once for all servers.
// No subflow waits for that. Connections take turns on the paths that were found.
func TestFirstLegFound(t *testing.T) {
	inband, tunnelled, direct, other := throughBob, throughBob, throughBob, throughBob
	inband.Kind, tunnelled.Kind, direct.Kind, direct.Direct = path.InBand, path.WireGuard, path.InBand, true
	other.Kind, other.Server = path.InBand, netip.MustParseAddrPort("203.0.113.5:443")
	for name, tc := range map[string]struct {
		policy config.Policy
		join   path.CreateSubflow
		want   bool
	}{
		"in-band":      {config.Policy{Use: config.UsePaths, Detours: true}, inband, true},
		"other port":   {config.Policy{Use: config.UsePaths, Detours: true, Ports: []int{80}}, inband, false},
		"without":      {config.Policy{Use: config.UsePaths}, inband, false},
		"path server":  {config.Policy{Use: config.UsePaths, Detours: true, Server: controller}, inband, false},
		"detours only": {config.Policy{Use: config.UseDetours}, inband, false},
		"mapped":       {config.Policy{Use: config.UsePaths, Detours: true}, throughBob, false},
		"tunnel":       {config.Policy{Use: config.UsePaths, Detours: true}, tunnelled, false},
		"direct":       {config.Policy{Use: config.UsePaths, Detours: true}, direct, false},
	} {
		if w := newWays([]config.Policy{tc.policy}, nil); w.finds(tc.join) != tc.want {
			t.Errorf("%s: found by probes: %t", name, !tc.want)
		}
	}
	w := newWays([]config.Policy{{Use: config.UsePaths, Detours: true}}, nil)
	now := time.Unix(1000, 0)
	if !w.searchesLeg(inband, now) || w.searchesLeg(inband, now) || w.searchesLeg(other, now) {
		t.Error("not searched once for all servers")
	}
	if ports, _ := w.candidates(inband); ports != nil {
		t.Errorf("ports %v before any are found", ports)
	}
	w.takeLegs(firstLegOf(inband), [][]uint16{{61000}, {62000}}, nil, now)
	for i, join := range []path.CreateSubflow{inband, other, inband} {
		want := [][]uint16{{61000, 62000}, {62000, 61000}}[i%2]
		if ports, only := w.candidates(join); !slices.Equal(ports, want) || only {
			t.Errorf("subflow %d: ports %v, only %t", i+1, ports, only)
		}
	}
	if w.searchesLeg(inband, now.Add(wayLifetime-1)) || !w.searchesLeg(inband, now.Add(wayLifetime)) {
		t.Error("not searched again after the lifetime")
	}
}
