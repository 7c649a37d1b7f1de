package client

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/path"
)

var waysServer = netip.MustParseAddrPort("192.0.2.1:443")

func pathsPolicy(change func(*config.Policy)) []config.Policy {
	p := config.Policy{Use: config.UsePaths, Subflows: 3}
	if change != nil {
		change(&p)
	}
	return []config.Policy{{Use: config.UseFullMesh}, p}
}

// TestWaysWanted searches only for connections that a policy covers.
func TestWaysWanted(t *testing.T) {
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
		w := newWays(pathsPolicy(tc.change), nil)
		if got, _ := w.wants(waysServer, tc.cgroup, 0); got != tc.want {
			t.Errorf("%s: %d paths, want %d", name, got, tc.want)
		}
	}
}

// TestWaysRemembered has ports remembered for a server, searched again after their time and after a change of routes, and
// withdrawn when there are fewer paths.
func TestWaysRemembered(t *testing.T) {
	w := newWays(pathsPolicy(nil), nil)
	now := time.Unix(1000, 0)
	take := func(err error, ports ...[]uint16) (offered, withdrawn int) {
		for _, ev := range w.take(waysServer, ports, err, now) {
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
		ports, _ := w.candidates(path.CreateSubflow{Kind: path.Port, Waypoint: name, Server: waysServer})
		return ports
	}
	if !w.due(waysServer, 3, "", now) || w.due(waysServer, 3, "", now) {
		t.Error("not searched once")
	}
	if offered, _ := take(nil, []uint16{61000, 61001}, []uint16{62000}); offered != 2 {
		t.Errorf("%d paths offered", offered)
	}
	if got := join("path-1"); !slices.Equal(got, []uint16{61000, 61001}) {
		t.Errorf("ports of the first path: %v", got)
	}
	if got, only := w.candidates(path.CreateSubflow{Kind: path.Port, Waypoint: "path-7", Server: waysServer}); len(got) != 0 || !only {
		t.Errorf("ports of a path that is gone: %v, not none", got)
	}
	if got := join(""); got != nil {
		t.Errorf("ports of a subflow by chance: %v", got)
	}
	if w.due(waysServer, 3, "", now.Add(wayLifetime-1)) || !w.due(waysServer, 3, "", now.Add(wayLifetime)) {
		t.Error("not searched again after its lifetime")
	}
	now = now.Add(wayLifetime)
	if offered, withdrawn := take(errors.New("no answer")); offered+withdrawn != 0 || len(join("path-2")) != 1 {
		t.Error("a search that failed forgets what was known")
	}
	if got := w.stale(now); !slices.Equal(got, []netip.AddrPort{waysServer}) || !w.known[waysServer].search(now) {
		t.Errorf("a change of routes concerns %v", got)
	}
	w.stale(now) // once more, during the search
	if _, withdrawn := take(nil); withdrawn != 2 {
		t.Errorf("%d paths withdrawn", withdrawn)
	}
	if !w.known[waysServer].search(now) {
		t.Error("a change during a search is forgotten")
	}
}

// TestWaysAreBounded keeps what is offered, and forgets the server that was wanted least lately.
func TestWaysAreBounded(t *testing.T) {
	w := newWays(pathsPolicy(nil), nil)
	server := func(i int) netip.AddrPort { return netip.AddrPortFrom(waysServer.Addr(), uint16(i+1)) }
	for i := range mostWays {
		now := time.Unix(int64(1000+i), 0)
		w.due(server(i), 2, "", now)
		if w.take(server(i), nil, nil, now); i == 0 {
			w.known[server(0)].ports = [][]uint16{{1}, {2}}
		}
	}
	if !w.due(server(mostWays), 2, "", time.Unix(5000, 0)) || len(w.known) != mostWays || w.known[server(0)] == nil || w.known[server(1)] != nil {
		t.Errorf("%d servers are known", len(w.known))
	}
}

// TestServersOfLongAgoGiveWay: what is known of a server gives way to a new one when no connection wanted it for long.
func TestServersOfLongAgoGiveWay(t *testing.T) {
	const asked = "controller@192.0.2.9:45674"
	for name, err := range map[string]error{"known": nil, "path server away": errors.New("no answer")} {
		w := newWays(pathsPolicy(nil), nil)
		server := func(i int) netip.AddrPort { return netip.AddrPortFrom(waysServer.Addr(), uint16(i+1)) }
		var now time.Time
		for i := range mostWays {
			now = time.Unix(int64(1000+i), 0)
			w.due(server(i), 2, asked, now)
			w.take(server(i), [][]uint16{{1}, {2}}, err, now)
		}
		if w.due(server(mostWays), 2, asked, now) {
			t.Errorf("%s: a server that is wanted gives way", name)
		}
		now = time.Unix(1000, 0).Add(wayLifetime)
		want := []path.Event{path.DetourWithdrawn{ID: wayID(0, server(0))}, path.DetourWithdrawn{ID: wayID(1, server(0))}}
		if !w.due(server(mostWays), 2, asked, now) || !slices.Equal(w.dropped, want) || w.known[server(0)] != nil || len(w.known) != mostWays {
			t.Errorf("%s: %d servers are known, withdrawn %v", name, len(w.known), w.dropped)
		}
	}
}

// TestPathServerForElephants: a path server is asked about a connection once it carried what its policy wants.
func TestPathServerForElephants(t *testing.T) {
	const server = "controller@192.0.2.9:45674"
	w := newWays(pathsPolicy(func(p *config.Policy) { p.Server, p.AfterBytes, p.Cgroup = server, 1000, "/sys/fs/cgroup/a" }), nil)
	for _, tc := range []struct {
		carried uint64
		cgroup  string
		want    int
	}{{0, "/sys/fs/cgroup/a", 0}, {999, "/sys/fs/cgroup/a", 0}, {1000, "/sys/fs/cgroup/a", 3}, {1000, "", 0}} {
		if n, asked := w.wants(waysServer, tc.cgroup, tc.carried); n != tc.want || n > 0 && asked != server {
			t.Errorf("%+v: %d paths from %q", tc, n, asked)
		}
	}
	if w.awaits(waysServer, 999) || !w.awaits(waysServer, 1000) {
		t.Error("not awaited at its size")
	}
	if w.due(waysServer, 3, server, time.Unix(1000, 0)); w.awaits(waysServer, 1000) {
		t.Error("awaited after it was asked")
	}
}

// TestPathServerGone: if a path server does not answer, subflows take ports by chance, or go on with those that are known,
// and it is asked again soon.
func TestPathServerGone(t *testing.T) {
	w := newWays(pathsPolicy(nil), nil)
	now := time.Unix(1000, 0)
	gone := errors.New("no answer")
	w.due(waysServer, 3, "controller@192.0.2.9:45674", now)
	if events := w.take(waysServer, nil, gone, now); len(events) != 3 {
		t.Errorf("%d paths by chance", len(events))
	}
	join := path.CreateSubflow{Kind: path.Port, Waypoint: wayName(2), Server: waysServer}
	if got, only := w.candidates(join); got != nil || only {
		t.Errorf("ports by chance: %v", got)
	}
	if w.known[waysServer].search(now.Add(askAgain-1)) || !w.known[waysServer].search(now.Add(askAgain)) {
		t.Error("not asked again after a while")
	}
	now = now.Add(askAgain)
	w.take(waysServer, [][]uint16{{61000}, {61001}, {61002}}, nil, now)
	if got, _ := w.candidates(join); !slices.Equal(got, []uint16{61002}) {
		t.Errorf("ports of the path server: %v", got)
	}
	now = now.Add(renewSoon)
	if w.known[waysServer].search(now.Add(-1)) || !w.known[waysServer].search(now) {
		t.Error("not renewed after its time")
	}
	events := w.take(waysServer, nil, gone, now)
	if got, _ := w.candidates(join); len(events) != 0 || len(got) != 1 {
		t.Error("a path server that is gone takes what was known")
	}
}

// TestPathServerRenewed: about new flows the path server is soon asked again, three times. If a connection comes long after the last
// answer, its flows are new, too.
func TestPathServerRenewed(t *testing.T) {
	w := newWays(pathsPolicy(nil), nil)
	now := time.Unix(1000, 0)
	w.due(waysServer, 3, "controller@192.0.2.9:45674", now)
	known := w.known[waysServer]
	for i, after := range []time.Duration{renewSoon, renewSoon, renewSoon, renewAfter, renewAfter, wayLifetime, renewSoon} {
		w.take(waysServer, [][]uint16{{61000}, {61001}, {61002}}, nil, now)
		if after < wayLifetime && known.search(now.Add(after-1)) {
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
	w := newWays(pathsPolicy(nil), nil)
	now := time.Unix(1000, 0)
	if w.hears("", now) || w.hears(controller, now) {
		t.Error("a request is open before any connection")
	}
	w.due(waysServer, 3, controller, now)
	if w.hears(controller, now) {
		t.Error("a request is open before the first answer")
	}
	w.take(waysServer, [][]uint16{{61000}, {61001}, {61002}}, nil, now)
	if !w.hears(controller, now) || w.hears("", now) || w.hears("other@192.0.2.8:45674", now) {
		t.Error("no request is open at the path server that answered, or one elsewhere")
	}
	if !w.hears(controller, now.Add(wayLifetime-1)) || w.hears(controller, now.Add(wayLifetime)) {
		t.Error("a request does not end with the connections")
	}
	w.hearing[controller] = true
	if w.hears(controller, now) {
		t.Error("two requests are open")
	}
	known := w.known[waysServer]
	other := netip.MustParseAddrPort("192.0.2.1:80")
	w.takeMoves("other@192.0.2.8:45674", []netip.AddrPort{waysServer})
	if w.takeMoves(controller, []netip.AddrPort{other}); known.search(now) || w.known[other] != nil {
		t.Error("asked about what was not moved")
	}
	w.takeMoves(controller, []netip.AddrPort{waysServer})
	if !known.search(now) || known.search(now) {
		t.Error("not asked once about what was moved")
	}
	w.takeMoves(controller, []netip.AddrPort{waysServer}) // while it is asked
	w.take(waysServer, [][]uint16{{61000}, {61001}, {61009}}, nil, now)
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
		w := newWays(pathsPolicy(nil), nil)
		now := time.Unix(1000, 0)
		w.due(waysServer, 3, "controller@192.0.2.9:45674", now)
		w.take(waysServer, tc.before, nil, now)
		var moved []int
		for _, ev := range w.take(waysServer, tc.now, nil, now.Add(renewAfter)) {
			if ev, ok := ev.(path.DetourMoved); ok {
				moved = append(moved, slices.IndexFunc([]int{0, 1, 2}, func(i int) bool { return wayID(i, waysServer) == ev.ID })+1)
			}
		}
		if got := w.known[waysServer].ports; !reflect.DeepEqual(got, tc.want) || !slices.Equal(moved, tc.moved) {
			t.Errorf("%s: ports %v, moved %v; not %v and %v", name, got, moved, tc.want, tc.moved)
		}
	}
}

// TestPortsOfTwoConnections: a second connection has a subflow on each path at once, although the first ports of all paths
// are those of the first connection, or of another program.
func TestPortsOfTwoConnections(t *testing.T) {
	kernel := mptcptest.New()
	kernel.SetUserspacePM(true)
	kernel.SetServerLimit(8)
	local := netip.MustParseAddr("10.0.0.1")
	h := &host{kernel: kernel, ways: newWays(pathsPolicy(nil), nil)}
	h.ways.due(waysServer, 3, "", time.Unix(1000, 0))
	h.ways.take(waysServer, [][]uint16{{61000, 61001, 61002}, {62000, 62001, 62002}, {63000, 63001, 63002}}, nil, time.Unix(1000, 0))
	kernel.Occupy(netip.AddrPortFrom(local, 62001))
	kernel.Occupy(netip.AddrPortFrom(local, 63000))
	var got [2][]uint16
	for k := range got {
		token := path.Token(kernel.Connect(local, waysServer))
		for i := range 3 {
			from, err := h.join(path.CreateSubflow{
				Token: token, LocalID: uint8(i + 1), Local: local, Remote: waysServer, Server: waysServer, Kind: path.Port, Waypoint: wayName(i),
			}, func(netip.AddrPort) error { return nil }, func(netip.AddrPort) {})
			if err != nil {
				t.Fatalf("connection %d, path %d: %v", k+1, i+1, err)
			}
			got[k] = append(got[k], from.Port())
		}
	}
	if !slices.Equal(got[0], []uint16{61000, 62000, 63001}) || !slices.Equal(got[1], []uint16{61001, 62002, 63002}) {
		t.Errorf("ports %v", got)
	}
}
