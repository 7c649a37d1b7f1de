package bench

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/bench/linkcheck"
	"github.com/detour-collective/dcol/lab/testbed"
)

// What the watcher sees of two connections that the host opened, one of which
// gets two subflows, beside one that it accepted; tokens come again.
func TestWatcherCounts(t *testing.T) {
	w := &watcher{connections: map[uint32]*observed{}, news: make(chan struct{}, 1)}
	now := time.Now()
	for _, ev := range []mptcp.Event{
		{Kind: mptcp.Established, Token: 1},
		{Kind: mptcp.Established, Token: 2},
		{Kind: mptcp.Established, Token: 3, ServerSide: true},
		{Kind: mptcp.SubflowEstablished, Token: 3},
		{Kind: mptcp.SubflowEstablished, Token: 1},
		{Kind: mptcp.SubflowEstablished, Token: 1},
		{Kind: mptcp.Closed, Token: 1},
		{Kind: mptcp.Closed, Token: 3},
		{Kind: mptcp.Established, Token: 1},
		{Kind: mptcp.SubflowEstablished, Token: 1},
		{Kind: mptcp.Closed, Token: 2},
		{Kind: mptcp.EventsLost},
	} {
		w.note(ev, now)
	}
	if got, want := w.counts(), (eventCounts{established: 3, joined: 2, twice: 1, mostAlive: 2, alive: 1, lost: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestLoadPorts(t *testing.T) {
	l := Load{At: netip.MustParseAddrPort("10.0.0.1:100"), Ports: 3}
	for i, want := range []uint16{100, 101, 102, 100} {
		if got := l.port(i).Port(); got != want {
			t.Errorf("connection %d goes to port %d, want %d", i, got, want)
		}
	}
}

// Each figure of the emulated link is held to its own bound.
func TestEmulatorFigures(t *testing.T) {
	r := linkcheck.Report{
		RTT: []linkcheck.RTT{
			{Asked: testbed.LinkParams{Delay: time.Millisecond}, Probes: 10, P99: 400 * time.Microsecond},
			{P99: 400 * time.Microsecond, Lost: 1},
			{P99: 600 * time.Microsecond},
		},
		Rate:    []linkcheck.Rate{{Asked: 10e6, Measured: 9.95e6, Error: -0.005}, {Asked: 10e6, Measured: 9.8e6, Error: -0.02}},
		Loss:    []linkcheck.Loss{{Rate: 10e6, Sigmas: -2.9}, {Rate: 10e6, Sigmas: -3.1}},
		Highest: linkcheck.Highest{Unlimited: 1e9, Exact: 5e8, PacketsPerSecond: 1e5},
	}
	var met []bool
	reported := 0
	for _, m := range emulatorFigures(r) {
		if m.Met == nil {
			reported++
			continue
		}
		met = append(met, *m.Met)
	}
	want := []bool{true, false, false, true, false, true, false}
	if len(met) != len(want) || reported != 3 {
		t.Fatalf("%d figures with a target and %d without, want %d and 3", len(met), reported, len(want))
	}
	for i := range want {
		if met[i] != want[i] {
			t.Errorf("figure %d: met %v", i+1, met[i])
		}
	}
}
