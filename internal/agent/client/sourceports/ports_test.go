package sourceports

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

var server443 = netip.MustParseAddrPort("192.0.2.1:443")

func pathsPolicy(change func(*config.Policy)) []config.Policy {
	p := config.Policy{Use: config.UsePaths, Subflows: 3}
	if change != nil {
		change(&p)
	}
	return []config.Policy{{Use: config.UseFullMesh}, p}
}

// TestPortsWanted searches only for connections that a policy covers.
func TestPortsWanted(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*config.Policy)
		cgroup string
		want   int
	}{
		"all":             {nil, "", 3},
		"another policy":  {func(p *config.Policy) { p.Use = config.UsePorts }, "", 0},
		"its port":        {func(p *config.Policy) { p.Ports = []int{443} }, "", 3},
		"another port":    {func(p *config.Policy) { p.Ports = []int{80} }, "", 0},
		"another network": {func(p *config.Policy) { p.Networks = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }, "", 0},
		"its cgroup":      {func(p *config.Policy) { p.Cgroup = "/sys/fs/cgroup/a" }, "/sys/fs/cgroup/a/b", 3},
		"another cgroup":  {func(p *config.Policy) { p.Cgroup = "/sys/fs/cgroup/a" }, "/sys/fs/cgroup/ab", 0},
		"by default":      {func(p *config.Policy) { p.Subflows = 0 }, "", 2},
	} {
		p := New(pathsPolicy(tc.change))
		if got, _ := p.wants(server443, tc.cgroup, 0); got != tc.want {
			t.Errorf("%s: %d paths, want %d", name, got, tc.want)
		}
	}
}

// TestPortsRemembered has ports remembered for a server, searched again after their time and after a change of routes, and
// withdrawn when there are fewer paths.
func TestPortsRemembered(t *testing.T) {
	p := New(pathsPolicy(nil))
	now := time.Unix(1000, 0)
	take := func(err error, ports ...[]uint16) (offered, withdrawn int) {
		for _, ev := range p.Found(server443, ports, err, now) {
			switch ev.(type) {
			case path.DetourOffered:
				offered++
			case path.DetourWithdrawn:
				withdrawn++
			}
		}
		return offered, withdrawn
	}
	join := func(name string) []uint16 {
		ports, _ := p.Candidates(path.CreateSubflow{Kind: path.Port, Waypoint: name, Server: server443})
		return ports
	}
	if !p.due(server443, 3, "", now) || p.due(server443, 3, "", now) {
		t.Error("not searched once")
	}
	if offered, _ := take(nil, []uint16{61000, 61001}, []uint16{62000}); offered != 2 {
		t.Errorf("%d paths offered", offered)
	}
	if got := join("path-1"); !slices.Equal(got, []uint16{61000, 61001}) {
		t.Errorf("ports of the first path: %v", got)
	}
	if got, only := p.Candidates(path.CreateSubflow{Kind: path.Port, Waypoint: "path-7", Server: server443}); len(got) != 0 || !only {
		t.Errorf("ports of a path that is gone: %v, not none", got)
	}
	if got := join(""); got != nil {
		t.Errorf("ports of a subflow by chance: %v", got)
	}
	if p.due(server443, 3, "", now.Add(lifetime-1)) || !p.due(server443, 3, "", now.Add(lifetime)) {
		t.Error("not searched again after its lifetime")
	}
	now = now.Add(lifetime)
	if offered, withdrawn := take(errors.New("no answer")); offered+withdrawn != 0 || len(join("path-2")) != 1 {
		t.Error("a search that failed forgets what was known")
	}
	if got := p.stale(now); !slices.Equal(got, []netip.AddrPort{server443}) || !p.servers[server443].search(now) {
		t.Errorf("a change of routes concerns %v", got)
	}
	p.stale(now) // once more, during the search
	if _, withdrawn := take(nil); withdrawn != 2 {
		t.Errorf("%d paths withdrawn", withdrawn)
	}
	if !p.servers[server443].search(now) {
		t.Error("a change during a search is forgotten")
	}
}

// TestPortsAreBounded keeps what is offered, and forgets the server that was wanted least lately.
func TestPortsAreBounded(t *testing.T) {
	p := New(pathsPolicy(nil))
	server := func(i int) netip.AddrPort { return netip.AddrPortFrom(server443.Addr(), uint16(i+1)) }
	for i := range mostKnown {
		now := time.Unix(int64(1000+i), 0)
		p.due(server(i), 2, "", now)
		if p.Found(server(i), nil, nil, now); i == 0 {
			p.servers[server(0)].ports = [][]uint16{{1}, {2}}
		}
	}
	if !p.due(server(mostKnown), 2, "", time.Unix(5000, 0)) || len(p.servers) != mostKnown || p.servers[server(0)] == nil || p.servers[server(1)] != nil {
		t.Errorf("%d servers are known", len(p.servers))
	}
}

// TestServersOfLongAgoGiveWay: what is known of a server gives way to a new one when no connection wanted it for long.
func TestServersOfLongAgoGiveWay(t *testing.T) {
	const asked = "controller@192.0.2.9:45674"
	for name, err := range map[string]error{"known": nil, "path server away": errors.New("no answer")} {
		p := New(pathsPolicy(nil))
		server := func(i int) netip.AddrPort { return netip.AddrPortFrom(server443.Addr(), uint16(i+1)) }
		var now time.Time
		for i := range mostKnown {
			now = time.Unix(int64(1000+i), 0)
			p.due(server(i), 2, asked, now)
			p.Found(server(i), [][]uint16{{1}, {2}}, err, now)
		}
		if p.due(server(mostKnown), 2, asked, now) {
			t.Errorf("%s: a server that is wanted gives way", name)
		}
		now = time.Unix(1000, 0).Add(lifetime)
		want := []path.Event{path.DetourWithdrawn{ID: pathID(0, server(0))}, path.DetourWithdrawn{ID: pathID(1, server(0))}}
		if !p.due(server(mostKnown), 2, asked, now) || !slices.Equal(p.dropped, want) || p.servers[server(0)] != nil || len(p.servers) != mostKnown {
			t.Errorf("%s: %d servers are known, withdrawn %v", name, len(p.servers), p.dropped)
		}
	}
}

// TestPathServerForElephants: a path server is asked about a connection once it carried what its policy wants.
func TestPathServerForElephants(t *testing.T) {
	const server = "controller@192.0.2.9:45674"
	p := New(pathsPolicy(func(p *config.Policy) { p.Server, p.AfterBytes, p.Cgroup = server, 1000, "/sys/fs/cgroup/a" }))
	for _, tc := range []struct {
		carried uint64
		cgroup  string
		want    int
	}{{0, "/sys/fs/cgroup/a", 0}, {999, "/sys/fs/cgroup/a", 0}, {1000, "/sys/fs/cgroup/a", 3}, {1000, "", 0}} {
		if n, asked := p.wants(server443, tc.cgroup, tc.carried); n != tc.want || n > 0 && asked != server {
			t.Errorf("%+v: %d paths from %q", tc, n, asked)
		}
	}
	if p.Grown(server443, 999) || !p.Grown(server443, 1000) {
		t.Error("not awaited at its size")
	}
	if p.due(server443, 3, server, time.Unix(1000, 0)); p.Grown(server443, 1000) {
		t.Error("awaited after it was asked")
	}
}

// TestPathServerGone: if a path server does not answer, subflows take ports by chance, or go on with those that are known,
// and it is asked again soon.
func TestPathServerGone(t *testing.T) {
	p := New(pathsPolicy(nil))
	now := time.Unix(1000, 0)
	gone := errors.New("no answer")
	p.due(server443, 3, "controller@192.0.2.9:45674", now)
	if events := p.Found(server443, nil, gone, now); len(events) != 3 {
		t.Errorf("%d paths by chance", len(events))
	}
	join := path.CreateSubflow{Kind: path.Port, Waypoint: pathName(2), Server: server443}
	if got, only := p.Candidates(join); got != nil || only {
		t.Errorf("ports by chance: %v", got)
	}
	if p.servers[server443].search(now.Add(askAgain-1)) || !p.servers[server443].search(now.Add(askAgain)) {
		t.Error("not asked again after a while")
	}
	now = now.Add(askAgain)
	p.Found(server443, [][]uint16{{61000}, {61001}, {61002}}, nil, now)
	if got, _ := p.Candidates(join); !slices.Equal(got, []uint16{61002}) {
		t.Errorf("ports of the path server: %v", got)
	}
	now = now.Add(renewSoon)
	if p.servers[server443].search(now.Add(-1)) || !p.servers[server443].search(now) {
		t.Error("not renewed after its time")
	}
	events := p.Found(server443, nil, gone, now)
	if got, _ := p.Candidates(join); len(events) != 0 || len(got) != 1 {
		t.Error("a path server that is gone takes what was known")
	}
}

// TestPathServerRenewed: about new flows the path server is soon asked again, three times. If a connection comes long after the last
// answer, its flows are new, too.
func TestPathServerRenewed(t *testing.T) {
	p := New(pathsPolicy(nil))
	now := time.Unix(1000, 0)
	p.due(server443, 3, "controller@192.0.2.9:45674", now)
	known := p.servers[server443]
	for i, after := range []time.Duration{renewSoon, renewSoon, renewSoon, renewAfter, renewAfter, lifetime, renewSoon} {
		p.Found(server443, [][]uint16{{61000}, {61001}, {61002}}, nil, now)
		if after < lifetime && known.search(now.Add(after-1)) {
			t.Errorf("renewal %d is too early", i+1)
		}
		if now = now.Add(after); !known.search(now) {
			t.Errorf("renewal %d is missing", i+1)
		}
	}
}

// TestPathServerHeard: a request for moves is open while connections use what the path server answered, and one at a time. About what it
// has moved, it is asked at once, but not twice, and not about what it was not asked for.
func TestPathServerHeard(t *testing.T) {
	p := New(pathsPolicy(nil))
	now := time.Unix(1000, 0)
	if p.hears("", now) || p.hears(controller, now) {
		t.Error("a request is open before any connection")
	}
	p.due(server443, 3, controller, now)
	if p.hears(controller, now) {
		t.Error("a request is open before the first answer")
	}
	p.Found(server443, [][]uint16{{61000}, {61001}, {61002}}, nil, now)
	if !p.hears(controller, now) || p.hears("", now) || p.hears("other@192.0.2.8:45674", now) {
		t.Error("no request is open at the path server that answered, or one elsewhere")
	}
	if !p.hears(controller, now.Add(lifetime-1)) || p.hears(controller, now.Add(lifetime)) {
		t.Error("a request does not end with the connections")
	}
	p.hearing[controller] = true
	if p.hears(controller, now) {
		t.Error("two requests are open")
	}
	known := p.servers[server443]
	other := netip.MustParseAddrPort("192.0.2.1:80")
	p.Moved("other@192.0.2.8:45674", []netip.AddrPort{server443})
	if p.Moved(controller, []netip.AddrPort{other}); known.search(now) || p.servers[other] != nil {
		t.Error("asked about what was not moved")
	}
	p.Moved(controller, []netip.AddrPort{server443})
	if !known.search(now) || known.search(now) {
		t.Error("not asked once about what was moved")
	}
	p.Moved(controller, []netip.AddrPort{server443}) // while it is asked
	p.Found(server443, [][]uint16{{61000}, {61001}, {61009}}, nil, now)
	if !known.search(now) {
		t.Error("a move during a request is forgotten")
	}
}

// TestPathServerMoves: subflows are replaced on a path whose ports are all others, but not on paths that the answer has in another
// order, nor on those by chance.
func TestPathServerMoves(t *testing.T) {
	first := [][]uint16{{61000, 61001}, {61002}, {61003}}
	for name, tc := range map[string]struct {
		before, now, want [][]uint16
		moved             []int
	}{
		"the same":         {first, first, first, nil},
		"another order":    {first, [][]uint16{{61003}, {61001, 61000}, {61002}}, [][]uint16{{61001, 61000}, {61002}, {61003}}, nil},
		"one is moved":     {first, [][]uint16{{61000}, {61009}, {61003}}, [][]uint16{{61000}, {61009}, {61003}}, []int{2}},
		"one is gone":      {first, [][]uint16{{61002}, {61003}, {61009}}, [][]uint16{{61009}, {61002}, {61003}}, []int{1}},
		"fewer":            {first, [][]uint16{{61003}, {61002}}, [][]uint16{{61003}, {61002}}, []int{1}},
		"by chance before": {make([][]uint16, 3), first, first, nil},
	} {
		p := New(pathsPolicy(nil))
		now := time.Unix(1000, 0)
		p.due(server443, 3, "controller@192.0.2.9:45674", now)
		p.Found(server443, tc.before, nil, now)
		var moved []int
		for _, ev := range p.Found(server443, tc.now, nil, now.Add(renewAfter)) {
			if ev, ok := ev.(path.DetourMoved); ok {
				moved = append(moved, slices.IndexFunc([]int{0, 1, 2}, func(i int) bool { return pathID(i, server443) == ev.ID })+1)
			}
		}
		if got := p.servers[server443].ports; !reflect.DeepEqual(got, tc.want) || !slices.Equal(moved, tc.moved) {
			t.Errorf("%s: ports %v, moved %v; not %v and %v", name, got, moved, tc.want, tc.moved)
		}
	}
}
