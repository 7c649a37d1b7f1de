package sourceports

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

const controller = "controller@192.0.2.9:45674"

var throughBob = path.CreateSubflow{
	Kind: path.Mapped, Waypoint: "bob", Remote: netip.MustParseAddrPort("198.51.100.7:40000"), Server: server443,
}

// TestDetourPortsAsked: a path server chooses the ports of detours where a policy says so, and of no other subflows.
func TestDetourPortsAsked(t *testing.T) {
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
		p := New([]config.Policy{tc.policy})
		if got := p.PathServer(tc.join); got != tc.want {
			t.Errorf("%s: %q is asked, want %q", name, got, tc.want)
		}
		if n, _ := p.wants(server443, "", 0); tc.policy.Use == config.UseDetours && n != 0 {
			t.Errorf("%s: %d paths are searched", name, n)
		}
	}
}

// TestDetourPortsAwaited: the first subflows wait for the path server, later ones use what it answered, also while it is asked again.
func TestDetourPortsAwaited(t *testing.T) {
	p := New(nil)
	now := time.Unix(1000, 0)
	if waits, search := p.Await(throughBob, now); !waits || !search {
		t.Error("the first does not wait")
	}
	if waits, search := p.Await(throughBob, now); !waits || search {
		t.Error("the second does not wait for the same answer")
	}
	if waited := p.Placed(throughBob, [][]uint16{{61000, 61001}}, nil, now); len(waited) != 2 {
		t.Errorf("%d have waited", len(waited))
	}
	if got, only := p.Candidates(throughBob); !slices.Equal(got, []uint16{61000, 61001}) || only {
		t.Errorf("ports %v, only %t", got, only)
	}
	for after, want := range map[time.Duration]bool{renewAfter - 1: false, renewAfter: true} {
		if waits, search := p.Await(throughBob, now.Add(after)); waits || search != want {
			t.Errorf("after %v: waits %t, search %t", after, waits, search)
		}
		p.detours[detourOf(throughBob)].searching = false
	}
	if p.forgetDetours(); len(p.detours) != 0 {
		t.Error("ports stay although routes have changed")
	}
}

// TestDetourPortsWithoutPathServer: if the path server is gone, detours use what they have, or any port.
func TestDetourPortsWithoutPathServer(t *testing.T) {
	p := New(nil)
	now, gone := time.Unix(1000, 0), errors.New("no answer")
	p.Await(throughBob, now)
	if waited := p.Placed(throughBob, nil, gone, now); len(waited) != 1 {
		t.Errorf("%d have waited", len(waited))
	}
	if got, only := p.Candidates(throughBob); got != nil || only {
		t.Errorf("ports %v, only %t", got, only)
	}
	if waits, search := p.Await(throughBob, now.Add(askAgain-1)); waits || search {
		t.Errorf("waits %t, search %t at once after an error", waits, search)
	}
	if waits, search := p.Await(throughBob, now.Add(askAgain)); waits || !search {
		t.Errorf("waits %t, search %t a while after an error", waits, search)
	}
	p.Placed(throughBob, [][]uint16{{61000}}, nil, now)
	p.Placed(throughBob, nil, gone, now)
	if got, _ := p.Candidates(throughBob); !slices.Equal(got, []uint16{61000}) {
		t.Errorf("an error leaves the ports %v", got)
	}
}

// TestDetourPortsTakeTurns: connections to one port of a server take different paths through one waypoint, also after a renewal.
func TestDetourPortsTakeTurns(t *testing.T) {
	p := New(nil)
	now := time.Unix(1000, 0)
	p.Await(throughBob, now)
	paths := [][]uint16{{61000, 61001}, {62000, 62001}, {63000}}
	p.Placed(throughBob, paths, nil, now)
	for i, want := range [][]uint16{
		{61000, 61001, 62000, 62001, 63000}, {62000, 62001, 63000, 61000, 61001}, {63000, 61000, 61001, 62000, 62001}, {61000, 61001, 62000, 62001, 63000},
	} {
		if got, only := p.Candidates(throughBob); !slices.Equal(got, want) || only {
			t.Errorf("subflow %d: ports %v, want %v", i+1, got, want)
		}
		if i == 1 {
			p.Placed(throughBob, paths, nil, now.Add(renewAfter))
		}
	}
	p.Placed(throughBob, nil, nil, now)
	if got, _ := p.Candidates(throughBob); got != nil {
		t.Errorf("without paths: ports %v", got)
	}
}

// TestDetourPortsAreBounded forgets the detour that was asked about least lately.
func TestDetourPortsAreBounded(t *testing.T) {
	p := New(nil)
	join := func(i int) path.CreateSubflow {
		a := throughBob
		a.Server = netip.AddrPortFrom(server443.Addr(), uint16(i+1))
		return a
	}
	for i := range mostKnown {
		now := time.Unix(int64(1000+i), 0)
		p.Await(join(i), now)
		if i > 0 {
			p.Placed(join(i), nil, nil, now)
		}
	}
	p.Await(join(mostKnown), time.Unix(5000, 0))
	if len(p.detours) != mostKnown || p.detours[detourOf(join(0))] == nil || p.detours[detourOf(join(1))] != nil {
		t.Errorf("%d detours are known", len(p.detours))
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
		if p := New([]config.Policy{tc.policy}); p.probes(tc.join) != tc.want {
			t.Errorf("%s: found by probes: %t", name, !tc.want)
		}
	}
	p := New([]config.Policy{{Use: config.UsePaths, Detours: true}})
	now := time.Unix(1000, 0)
	if !p.WantFirstLeg(inband, now) || p.WantFirstLeg(inband, now) || p.WantFirstLeg(other, now) {
		t.Error("not searched once for all servers")
	}
	if ports, _ := p.Candidates(inband); ports != nil {
		t.Errorf("ports %v before any are found", ports)
	}
	p.FirstLegFound(inband, [][]uint16{{61000}, {62000}}, nil, now)
	for i, join := range []path.CreateSubflow{inband, other, inband} {
		want := [][]uint16{{61000, 62000}, {62000, 61000}}[i%2]
		if ports, only := p.Candidates(join); !slices.Equal(ports, want) || only {
			t.Errorf("subflow %d: ports %v, only %t", i+1, ports, only)
		}
	}
	if p.WantFirstLeg(inband, now.Add(lifetime-1)) || !p.WantFirstLeg(inband, now.Add(lifetime)) {
		t.Error("not searched again after the lifetime")
	}
}
