package scenarios

import (
	"flag"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/dissect"
	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/scenario"
)

var compare = flag.Bool("dissect", false, "capture every scenario and compare the packets with tshark's fields")

// The shortest form of a scenario.
const (
	shortRun   = 3 * time.Second
	shortFile  = 500_000
	afterEvent = 2 * time.Second // of the last one
	snapLength = 128
)

// What dcol reads in captures of all scenarios is what tshark reads, packet by packet. Runs need not be accurate. They
// are made one after another.
func TestScenariosAsTshark(t *testing.T) {
	if !*compare {
		t.Skip("runs only when asked to, by `make nightly-tshark` or -dissect: it takes a while")
	}
	for _, name := range []string{"tshark", "tcpdump"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("needs the program %s", name)
		}
	}
	pair := build(t)
	seen := map[string]int{}
	for _, name := range Names() {
		s, _, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if s == nil {
			continue // a suite of others
		}
		t.Run(name, func(t *testing.T) {
			shorten(s)
			for _, p := range s.Procedures {
				if p.Transport == scenario.MPTCP {
					t.Run(p.Name, func(t *testing.T) { asTshark(t, pair, s, p, seen) })
				}
			}
		})
	}
	for _, field := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%s is the same in %d packets", field, seen[field])
	}
}

// shorten makes a scenario as short as it can be with all its events.
func shorten(s *scenario.Scenario) {
	need := shortRun
	for _, e := range s.Events {
		need = max(need, e.At.Std()+afterEvent)
	}
	w := &s.Workload
	w.Duration, w.Skip = min(w.Duration, units.Duration(need)), 0
	w.Size, w.Count = min(w.Size, shortFile), min(w.Count, 1)
	for i := range s.Procedures {
		s.Procedures[i].WarmUp = min(s.Procedures[i].WarmUp, units.Duration(shortRun))
	}
}

// asTshark runs a procedure and compares its capture.
func asTshark(t *testing.T, pair programs.Pair, s *scenario.Scenario, p scenario.Procedure, seen map[string]int) {
	t.Helper()
	base, _ := s.Variant(scenario.Base)
	o := experiment.Options{Programs: pair, Out: t.TempDir(), Procedures: []string{p.Name}, Capture: snapLength}
	l, err := experiment.Open(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Execute(t.Context(), experiment.Order{Variant: base, Procedure: p, Events: s.Events, Log: "run"})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Logf("the run did not go well, and its capture is compared all the same: %v", err)
	}
	r, err := dissect.Compare(t.Context(), filepath.Join(o.Out, "logs", "run", experiment.CaptureFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d packets, %d with MPTCP, %d connections, %d fields", r.Packets, r.MPTCP, r.Connections, len(r.Fields))
	if r.MPTCP == 0 {
		t.Error("the capture has no MPTCP")
	}
	if r.Differing > len(r.Differences) {
		t.Errorf("%d differences; the first:", r.Differing)
	}
	for _, d := range r.Differences {
		t.Error(d)
	}
	for field, n := range r.Fields {
		seen[field] += n
	}
}
