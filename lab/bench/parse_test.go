package bench

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/bench/linkcheck"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestParseCPU(t *testing.T) {
	got, err := parseCPU("71 (a ) Z 1) S 1 71 71 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 1 0\n")
	if want := 2 * time.Second; err != nil || got != want {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parseCPU(string(text)); err != nil || got < 0 || got > time.Hour {
		t.Errorf("this process: %v, %v", got, err)
	}
}

func FuzzParseCPU(f *testing.F) {
	f.Add("71 (dcol) S 1 71 71 0 -1 4194560 1 2 3 4 150 50 7 8")
	f.Add("71 (dcol) S 1")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if cpu, err := parseCPU(text); err != nil && cpu != 0 {
			t.Errorf("%q: %v and %v", text, cpu, err)
		}
	})
}

func TestParseMemory(t *testing.T) {
	got, err := parseMemory([]byte("Name:\tVmRSS:\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n"))
	if want := (memory{now: 1 << 20, most: 2 << 20}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := parseMemory([]byte("Name:\tkthreadd\n")); err == nil {
		t.Error("a thread of the kernel has no memory")
	}
}

// What the watcher sees of two connections that the host opened, one of which
// gets two subflows, beside one that it accepted; tokens come again.
func TestWatcherCounts(t *testing.T) {
	w := &watcher{lives: map[uint32]*life{}, news: make(chan struct{}, 1)}
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
		{Kind: mptcp.EventsLost},
	} {
		w.note(ev, now)
	}
	if got, want := w.tally(), (tally{established: 3, joined: 2, twice: 1, alive: 2, lost: 1}); got != want {
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

// Each figure of the wire is held to its own bound.
func TestWireFigures(t *testing.T) {
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
	for _, m := range wireFigures(r) {
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
