package experiment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Three ways to carry a workload.
const threeWays = `
[[procedure]]
name = "tcp"
transport = "tcp"
[[procedure]]
name = "tcp-detour"
transport = "tcp"
detour = "mapped"
[[procedure]]
name = "dcol"
transport = "mptcp"
detour = "mapped"
`

// Each workload that is limited by its program, by each way: what is delivered is
// what was planned, latencies are at least what the links' delay makes them, and
// MPTCP's connection has its second path. None of it depends on the machine's speed.
func TestTurns(t *testing.T) {
	needRoot(t)
	t.Parallel()
	program := buildPrograms(t)
	for _, test := range []struct {
		name, workload string
		count          int     // of latencies
		bytes          int64   // after the skip
		leastMS        float64 // the links' delays, as often as they are crossed
	}{
		{"upload", `kind = "stream"
rate = "1mbit"
interval = "20ms"
duration = "2s"
skip = "400ms"`, 80, 80 * 2500, 5},
		{"download", `kind = "stream"
direction = "download"
duration = "2s"`, 100, 100 * 1250, 5},
		{"requests", `kind = "requests"
interval = "50ms"
size = "20KB"
duration = "2s"`, 40, 40 * 20000, 10},
		{"files", `kind = "http"
size = "50KB"
count = 3`, 3, 3 * 50_000, 20}, // a handshake, then the file
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := parse(t, kindsNetwork+"[workload]\n"+test.workload+threeWays)
			var progress strings.Builder
			result, err := Run(t.Context(), s, Options{Programs: program, Out: t.TempDir(), Stderr: &progress, anyFidelity: true})
			if err != nil {
				t.Fatalf("%v\n%s", err, progress.String())
			}
			if len(result.Runs) != 3 {
				t.Fatalf("%d runs, want 3\n%s", len(result.Runs), progress.String())
			}
			for _, run := range result.Runs {
				checkTurns(t, run, test.count, test.bytes, test.leastMS)
			}
			if row := result.Rows[0]; row.Latency == nil || row.Latency.Count != test.count {
				t.Errorf("the row's latency is %+v", row.Latency)
			}
		})
	}
}

func checkTurns(t *testing.T, run report.Run, count int, bytes int64, leastMS float64) {
	t.Helper()
	l := run.Latency
	if l == nil || l.Count != count {
		t.Fatalf("%s: latency %+v, want %d", run.Procedure, l, count)
	}
	// The detour is over the same delay as the direct path.
	if !(l.P50MS >= leastMS && l.P50MS <= l.P90MS && l.P90MS <= l.P95MS && l.P95MS <= l.P99MS && l.P99MS <= l.MaxMS) {
		t.Errorf("%s: latency %+v, want percentiles in order and from %v ms", run.Procedure, *l, leastMS)
	}
	if run.Bytes != bytes || run.GoodputMbps <= 0 || run.MeasuredSeconds <= 0 || run.CompletionSeconds <= 0 {
		t.Errorf("%s: %d bytes, want %d; %v Mbit/s over %v of %v s", run.Procedure, run.Bytes, bytes,
			run.GoodputMbps, run.MeasuredSeconds, run.CompletionSeconds)
	}
	if run.LongestStallMS <= 0 || run.LongestStallMS > run.CompletionSeconds*1000 {
		t.Errorf("%s: stalled for %v ms in %v s", run.Procedure, run.LongestStallMS, run.CompletionSeconds)
	}
	direct, detour := run.PathBytes(scenario.DirectPath), run.PathBytes("w")
	switch run.Procedure {
	case "tcp":
		if direct < bytes || detour != 0 {
			t.Errorf("tcp: %d bytes on the direct path, %d on the detour", direct, detour)
		}
	case "tcp-detour":
		if detour < bytes || direct != 0 {
			t.Errorf("tcp-detour: %d bytes on the direct path, %d on the detour", direct, detour)
		}
	default:
		if direct == 0 || detour == 0 || direct+detour < bytes {
			t.Errorf("dcol: %d bytes on the direct path, %d on the detour", direct, detour)
		}
	}
}

// What runs before the measured traffic is not in the result. The agent is the same, or another one after a restart.
func TestWarmUp(t *testing.T) {
	needRoot(t)
	t.Parallel()
	program := buildPrograms(t)
	for _, test := range []struct {
		name, more string
		agents     int
	}{{"the same agent", "", 1}, {"restarted", "restart = true", 2}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			log := runWarm(t, program, test.more)
			if !strings.Contains(log, "level=DEBUG") {
				t.Error("the agent was not configured as the procedure says")
			}
			started, stopped := strings.Count(log, "agent is running"), strings.Count(log, "agent has stopped")
			if started != test.agents || stopped != test.agents {
				t.Errorf("%d agents started and %d stopped, want %d", started, stopped, test.agents)
			}
		})
	}
}

// runWarm measures a stream after three seconds of other traffic. It returns the log of the client's agent.
func runWarm(t *testing.T, program programs.Pair, more string) string {
	t.Helper()
	s := parse(t, kindsNetwork+`[workload]
kind = "stream"
duration = "1s"
[[procedure]]
name = "dcol"
transport = "mptcp"
detour = "mapped"
warm_up = "3s"
dcol = { log_level = "debug" }
`+more)
	out := t.TempDir()
	result, err := Run(t.Context(), s, Options{Programs: program, Out: out, anyFidelity: true})
	if err != nil {
		t.Fatal(err)
	}
	run := result.Runs[0]
	checkTurns(t, run, 50, 50*1250, 5)
	total := int64(0)
	for _, p := range run.Paths {
		total += p.Bytes
	}
	if most := int64(2 * 50 * 1250); total > most {
		t.Errorf("%d bytes on all paths, more than %d: those before count too", total, most)
	}
	log, err := os.ReadFile(filepath.Join(out, run.Log, "client-agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}
