package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// Bytes are counted by path. What an adopted connection carried before belongs to another agent.
func TestTally(t *testing.T) {
	m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), birth
	tell := func(ev path.Event) []path.Action { return m.Handle(ev, now) }
	local, remote := netip.AddrPortFrom(ip("me"), 5001), netip.AddrPortFrom(ip("web"), 80)
	joined := netip.AddrPortFrom(ip("me"), 50001)
	bob := netip.AddrPortFrom(ip("bob"), 80)
	tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	tell(path.DetourOffered{Detour: path.Detour{ID: "b", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}})
	tell(path.ConnEstablished{Token: 1, Local: local, Remote: remote})
	tell(path.SubflowRequested{Token: 1, LocalID: 1, Local: joined})
	tell(path.SubflowEstablished{Token: 1, LocalID: 1, Local: joined, Remote: bob})
	sample := func(token path.Token, local, remote netip.AddrPort, received, acked uint64) {
		now = now.Add(time.Second)
		tell(path.Measured{Samples: []path.Sample{{Token: token, Local: local, Remote: remote, BytesReceived: received, BytesAcked: acked}}})
	}
	sample(1, local, remote, 1000, 10)
	sample(1, joined, bob, 500, 1)
	sample(1, local, remote, 1500, 20)
	now = now.Add(5 * time.Second)
	tell(path.ConnClosed{Token: 1})

	other := netip.AddrPortFrom(ip("me"), 5002)
	tell(path.Resync{Conns: []path.LiveConn{{Token: 2, Local: other, Remote: remote, Subflows: []path.LiveSubflow{{Local: other, Remote: remote}}}}})
	sample(2, other, remote, 1_000_000, 0)
	sample(2, other, remote, 1_000_007, 0)
	tell(path.ConnClosed{Token: 2})

	snap := m.Snapshot(now)
	want := []path.Carried{{Kind: "direct", Received: 1507, Sent: 20}, {Kind: "in-band", Waypoint: "bob", Received: 500, Sent: 1}}
	if d := cmp.Diff(want, snap.Carried); d != "" {
		t.Errorf("carried (-want +is)\n%s", d)
	}
	lived := path.Lifetimes{Counts: make([]uint64, len(path.LifetimeBounds)+1), Sum: 8 * time.Second}
	lived.Counts[2] = 1 // up to ten seconds
	if d := cmp.Diff(lived, snap.Lifetimes); d != "" {
		t.Errorf("lifetimes (-want +is)\n%s", d)
	}
}

// Without a port, a server is explained by the port of its newest connection, or of the one that ended last.
func TestExplainChoosesThePort(t *testing.T) {
	m := path.New(path.Config{Policy: policy.Detours{Subflows: 2}})
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, birth)
	want := func(port uint16) {
		t.Helper()
		if x := m.Explain(netip.AddrPortFrom(ip("web"), 0), netip.Addr{}, birth); x.Server.Port() != port {
			t.Errorf("%v is explained, want port %d", x.Server, port)
		}
	}
	want(443)
	for i, port := range []uint16{80, 8080} {
		m.Handle(path.ConnEstablished{Token: path.Token(i + 1), Local: netip.AddrPortFrom(ip("me"), 5000+port), Remote: netip.AddrPortFrom(ip("web"), port)}, birth.Add(time.Duration(i)*time.Second))
		want(port)
	}
	m.Handle(path.ConnClosed{Token: 2}, birth)
	want(80)
	m.Handle(path.ConnClosed{Token: 1}, birth)
	want(80)
}

// Connections to excluded destinations, and those whose paths the kernel manages itself, are measured as well: their
// rates are shown, and their bytes count up to the end. Nothing is decided about them.
func TestUnmanagedConnectionsAreMeasured(t *testing.T) {
	for name, leave := range map[string]func(tell func(path.Event) []path.Action){
		"excluded": func(tell func(path.Event) []path.Action) {
			tell(path.Reconfigured{Policy: policy.Detours{Subflows: 2}, Exclude: []netip.Prefix{netip.PrefixFrom(ip("web"), 24)}})
		},
		"refused": func(tell func(path.Event) []path.Action) {
			tell(path.DetourOffered{Detour: path.Detour{ID: "b", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}})
		},
	} {
		m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), birth
		tell := func(ev path.Event) []path.Action { return m.Handle(ev, now) }
		local, remote := netip.AddrPortFrom(ip("me"), 5001), netip.AddrPortFrom(ip("web"), 80)
		tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
		leave(tell)
		tell(path.ConnEstablished{Token: 1, Local: local, Remote: remote})
		if name == "refused" {
			tell(path.CreateFailed{Token: 1, LocalID: 1, Gone: true})
		}
		sample := path.Sample{Token: 1, Local: local, Remote: remote}
		for range 3 {
			now = now.Add(time.Second)
			sample.BytesReceived += 1_000_000
			sample.BytesAcked += 100
			if acts := tell(path.Measured{Complete: true, Samples: []path.Sample{sample}}); len(acts) > 0 {
				t.Errorf("%s: samples lead to %v", name, acts)
			}
		}
		snap := m.Snapshot(now)
		if s := snap.Conns[0].Subflows[0]; s.ReceiveRate != 8e6 || s.SendRate != 800 {
			t.Errorf("%s: rates are %v and %v", name, s.ReceiveRate, s.SendRate)
		}
		if len(m.Busiest(5, now).Conns) != 1 {
			t.Errorf("%s: the history does not see it", name)
		}
		tell(path.SubflowClosed{Token: 1, Local: local, Remote: remote})
		tell(path.ConnClosed{Token: 1})
		tell(path.SubflowCounted{Local: local, Remote: remote, BytesReceived: 3_500_000, BytesAcked: 301})
		want := []path.Carried{{Kind: "direct", Received: 3_500_000, Sent: 301}}
		if d := cmp.Diff(want, m.Snapshot(now).Carried); d != "" {
			t.Errorf("%s: carried (-want +is)\n%s", name, d)
		}
	}
}

// What a subflow carried after its last sample is counted once, when the kernel reports its last counters before or
// after its end.
func TestTallyOfLastCounters(t *testing.T) {
	for _, tc := range []struct {
		name    string
		sampled bool
		events  func(counted path.SubflowCounted, subflow path.SubflowClosed, conn path.ConnClosed) []path.Event
	}{
		{"counters last", true, func(counted path.SubflowCounted, subflow path.SubflowClosed, conn path.ConnClosed) []path.Event {
			return []path.Event{subflow, conn, counted, counted}
		}},
		{"counters first", true, func(counted path.SubflowCounted, subflow path.SubflowClosed, conn path.ConnClosed) []path.Event {
			return []path.Event{counted, subflow, conn}
		}},
		{"never sampled", false, func(counted path.SubflowCounted, subflow path.SubflowClosed, conn path.ConnClosed) []path.Event {
			return []path.Event{subflow, counted, conn}
		}},
		{"only the connection's end", true, func(counted path.SubflowCounted, _ path.SubflowClosed, conn path.ConnClosed) []path.Event {
			return []path.Event{conn, counted}
		}},
		{"an end found by listing", true, func(counted path.SubflowCounted, _ path.SubflowClosed, _ path.ConnClosed) []path.Event {
			return []path.Event{path.Resync{}, counted}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), birth
			tell := func(ev path.Event) { m.Handle(ev, now) }
			joined, bob := netip.AddrPortFrom(ip("me"), 50001), netip.AddrPortFrom(ip("bob"), 80)
			tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
			tell(path.DetourOffered{Detour: path.Detour{ID: "b", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}})
			tell(path.ConnEstablished{Token: 1, Local: netip.AddrPortFrom(ip("me"), 5001), Remote: netip.AddrPortFrom(ip("web"), 80)})
			tell(path.SubflowRequested{Token: 1, LocalID: 1, Local: joined})
			tell(path.SubflowEstablished{Token: 1, LocalID: 1, Local: joined, Remote: bob})
			if tc.sampled {
				tell(path.Measured{Samples: []path.Sample{{Token: 1, Local: joined, Remote: bob, BytesReceived: 500, BytesAcked: 1}}})
			}
			counted := path.SubflowCounted{Local: joined, Remote: bob, BytesReceived: 1234, BytesAcked: 77}
			for _, ev := range tc.events(counted, path.SubflowClosed{Token: 1, LocalID: 1, Local: joined, Remote: bob}, path.ConnClosed{Token: 1}) {
				now = now.Add(100 * time.Millisecond)
				tell(ev)
			}
			want := []path.Carried{{Kind: "in-band", Waypoint: "bob", Received: 1234, Sent: 77}}
			if d := cmp.Diff(want, m.Snapshot(now).Carried); d != "" {
				t.Errorf("carried (-want +is)\n%s", d)
			}
		})
	}
}

// The first connection to a server is counted even if it is over before the kernel reports its beginning.
func TestTallyOfEndBeforeBeginning(t *testing.T) {
	m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), birth
	local, remote := netip.AddrPortFrom(ip("me"), 5001), netip.AddrPortFrom(ip("web"), 80)
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, now)
	m.Handle(path.SubflowCounted{Local: local, Remote: remote, BytesReceived: 1234, BytesAcked: 77}, now)
	m.Handle(path.ConnEstablished{Token: 1, Local: local, Remote: remote}, now)
	m.Handle(path.ConnClosed{Token: 1}, now)
	want := []path.Carried{{Kind: "direct", Received: 1234, Sent: 77}}
	if d := cmp.Diff(want, m.Snapshot(now).Carried); d != "" {
		t.Errorf("carried (-want +is)\n%s", d)
	}
}

// Counters of sockets that belong to no connection are kept for a short while, and leave room for others.
func TestTallyForgetsStrangers(t *testing.T) {
	m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), birth
	for i := range 20_000 {
		m.Handle(path.SubflowCounted{Local: netip.AddrPortFrom(ip("me"), uint16(1000+i)), Remote: netip.AddrPortFrom(ip("web"), 80), BytesReceived: 9}, now)
	}
	if n := m.Unsettled(); n > 5000 {
		t.Errorf("%d are kept", n)
	}
	now = now.Add(time.Minute)
	m.Handle(path.SubflowCounted{Local: netip.AddrPortFrom(ip("me"), 1), Remote: netip.AddrPortFrom(ip("web"), 80)}, now)
	if n := m.Unsettled(); n > 1 {
		t.Errorf("%d are kept after a minute", n)
	}
}

// Busiest returns the busiest connections: bulk first, none that was idle for long, and never more than asked for.
func TestBusiest(t *testing.T) {
	m := path.New(path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true, BulkPorts: []uint16{81}, MessagePorts: []uint16{82}})
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, birth)
	now := birth
	move := func(token path.Token, bytes uint64) {
		local, port := netip.AddrPortFrom(ip("me"), uint16(10000+token)), uint16(80+token%3)
		server := netip.AddrPortFrom(ip("web"), port)
		m.Handle(path.ConnEstablished{Token: token, Local: local, Remote: server}, now)
		m.Handle(path.Measured{Samples: []path.Sample{{Token: token, Local: local, Remote: server, BytesReceived: bytes, MinRTT: time.Millisecond}}}, now)
	}
	for token := range path.Token(30) {
		move(token+1, 0) // none of these moves anything
	}
	for token := range path.Token(30) {
		move(token+101, 1000)
	}
	all := m.Busiest(1000, now).Conns
	if len(all) != 30 || all[0].Traffic != "bulk" || all[29].Traffic != "short" {
		t.Errorf("%d connections: %+v", len(all), all)
	}
	if some := m.Busiest(5, now); len(some.Conns) != 5 || some.Conns[4].Traffic != "bulk" || some.Detours != nil {
		t.Errorf("%+v", some)
	}
	if later := m.Busiest(1000, now.Add(time.Minute)).Conns; len(later) != 0 {
		t.Errorf("a minute later: %+v", later)
	}
}
