package bench

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/programs/programstest"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage() // hosts and wires start as this executable
	goleak.VerifyTestMain(m)
}

// options are those of a benchmark in a test. Hosts run the real program.
func options(t *testing.T) Options {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	if _, err := os.Stat("/proc/sys/net/mptcp/enabled"); err != nil {
		t.Skip("this kernel has no MPTCP")
	}
	return Options{
		Out: t.TempDir(), Programs: programstest.Build(t), Stdout: t.Output(), Stderr: t.Output(),
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// Every benchmark on a real network, small: what it counts is right, whatever
// the machine's speed. Those that look at times run alone, the others together,
// because most of them wait.
func TestSmall(t *testing.T) {
	o := options(t)
	t.Run("collective", func(t *testing.T) { smallCollective(t, o) })
	t.Run("selection/sharing", func(t *testing.T) { smallSharing(t, o) })
	t.Run("selection/alive", func(t *testing.T) { smallAlive(t, o) })
	together := func(name string, small func(*testing.T, Options)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := o
			own.Out = t.TempDir()
			small(t, own)
		})
	}
	together("forwarding", smallForwarding)
	together("joins", smallJoins)
	together("convert", smallConvert)
	together("mappings", smallMappings)
	together("join", smallJoin)
	for _, kind := range []config.Kind{config.Mapped, config.InBand} {
		together("connections/"+string(kind), func(t *testing.T, o Options) { smallConnections(t, o, kind) })
	}
}

func smallJoin(t *testing.T, o Options) {
	const n = 3
	for _, kind := range []config.Kind{config.InBand, config.Mapped, config.WireGuard} {
		j, err := joins(t.Context(), o, kind, testbed.BackendVeth, n, 0)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		for _, took := range append(j.cold, j.warm...) {
			if took <= 0 {
				t.Errorf("%s: a subflow came up after %v ms", kind, took)
			}
		}
		if len(j.cold) != n || len(j.warm) != n || len(j.trips) != 2*n {
			t.Errorf("%s: %d and %d connections and %d round trips measured, want %d, %d and %d", kind, len(j.cold), len(j.warm), len(j.trips), n, n, 2*n)
		}
	}
}

func smallConnections(t *testing.T, o Options, kind config.Kind) {
	const total = 40
	load := Load{Ports: 2, Rate: total, Duration: 1e9, Hold: 2e9}
	r, err := runConnections(t.Context(), o, kind, load)
	if err != nil {
		t.Fatal(err)
	}
	if r.driven.Opened != total || r.driven.Failed != 0 {
		t.Errorf("the program counts %+v", r.driven)
	}
	if r.seen.established != total || r.seen.joined != total || r.seen.mostAlive < 1 || r.seen.lost != 0 {
		t.Errorf("the listener counts %+v", r.seen)
	}
	if r.counters.Connections != total || r.counters.SubflowsUp != total {
		t.Errorf("the agent counts %+v", r.counters)
	}
	if r.agent.Highest < 1<<20 || len(r.agent.Resident) < 2 {
		t.Errorf("the agent's memory: %+v", r.agent)
	}
	for _, m := range r.figures(load) {
		if m.Name == r.name("without their subflow") && (m.Value != 0 || m.Met == nil || !*m.Met) {
			t.Errorf("reported as %+v", m)
		}
	}
}

func smallMappings(t *testing.T, o Options) {
	if _, _, err := findIptables(t.Context()); err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip(err)
	}
	found, err := compareMappings(t.Context(), o, mappingPlan{
		rounds: 2, each: 40, original: 1e9, goodputs: 1, goodputSeconds: 1, connects: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found {
		if !(m.Value > 0) || m.Baseline != nil && !(*m.Baseline > 0) {
			t.Errorf("%+v: nothing was measured", m)
		}
	}
}

// A benchmark that does not exist is refused before anything runs.
func TestUnknown(t *testing.T) {
	var said bytes.Buffer
	err := Run(context.Background(), []string{"leaps"}, Options{Stderr: &said})
	if want := fmt.Sprintf("there is no benchmark %q", "leaps"); err == nil || !strings.HasPrefix(err.Error(), want) || said.Len() > 0 {
		t.Errorf("error %v, said %q", err, &said)
	}
}
