package experiment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
)

// replaced returns the tiny scenario with its workload and what follows replaced.
func replaced(t *testing.T, tail string) *scenario.Scenario {
	t.Helper()
	head, _, _ := strings.Cut(tiny, "[workload]")
	return parse(t, head+tail)
}

func run(t *testing.T, s *scenario.Scenario) (*report.Result, string, error) {
	t.Helper()
	needRoot(t)
	var progress strings.Builder
	r, err := Run(t.Context(), s, Options{Out: t.TempDir(), Stderr: &progress, anyFidelity: true})
	return r, progress.String(), err
}

// Events happen when they should: a link that is down for a while is a stall of
// at least about that long.
func TestTimeline(t *testing.T) {
	t.Parallel()
	s := replaced(t, `
[workload]
kind = "command"
port = 5201
server_command = ["iperf3", "--server", "--one-off", "--port", "{port}"]
client_command = ["iperf3", "--client", "{address}", "--port", "{port}", "--time", "2"]
[[procedure]]
name = "tcp"
transport = "tcp"
[[event]]
at = "1300ms"
link = "1"
down = false
[[event]]
at = "600ms"
link = "1"
down = true
`)
	result, progress, err := run(t, s)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress)
	}
	got := result.Runs[0]
	if got.LongestStallMS < 500 || dropped(got) == 0 {
		t.Errorf("a link was down for 700 ms: longest stall %.0f ms, %d packets dropped by it", got.LongestStallMS, dropped(got))
	}
	if got.GoodputMbps <= 0 || got.GoodputMbps > 20 {
		t.Errorf("goodput %.2f on a link of 20 Mbit/s", got.GoodputMbps)
	}
}

func dropped(r report.Run) uint64 {
	sum := uint64(0)
	for _, l := range r.Links {
		sum += l.DownDrops
	}
	return sum
}

// A program that fails is named, with its host and the last it said.
func TestProgramFails(t *testing.T) {
	t.Parallel()
	s := replaced(t, `
[workload]
kind = "command"
port = 5201
server_command = ["iperf3", "--server", "--one-off", "--port", "{port}"]
client_command = ["sh", "-c", "echo the reason is this >&2; exit 7"]
[[procedure]]
name = "tcp"
transport = "tcp"
`)
	result, progress, err := run(t, s)
	for _, want := range []string{"sh on client", "exit status 7", "the reason is this", "base-tcp-cubic-1-again-2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if result == nil || len(result.Runs) != runner.MaxAttempts || result.Runs[0].Valid() {
		t.Errorf("the failed attempts are not in the result")
	}
	if !strings.Contains(progress, "repeating it") || !strings.Contains(progress, "giving it up") {
		t.Errorf("progress says nothing of the attempts:\n%s", progress)
	}
}

func TestServerFails(t *testing.T) {
	t.Parallel()
	s := replaced(t, `
[workload]
kind = "command"
port = 5201
server_command = ["no-such-program"]
client_command = ["true"]
[[procedure]]
name = "tcp"
transport = "tcp"
`)
	if _, _, err := run(t, s); err == nil || !strings.Contains(err.Error(), "no-such-program on server") {
		t.Errorf("error %v", err)
	}
}

// After a host was killed the next run is on a network as declared.
func TestKilledHostIsBackForTheNextRun(t *testing.T) {
	t.Parallel()
	s := parse(t, strings.Replace(strings.Replace(tiny, "repetitions = 1", "repetitions = 2", 1), "[[variant]]", `
[[host]]
name = "bystander"
[[link]]
name = "2"
a = "client"
b = "bystander"
[[event]]
at = "100ms"
kill = "bystander"
[[variant]]`, 1))
	result, progress, err := run(t, s)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress)
	}
	if row, _ := result.Under("cubic").Row(scenario.Base, "tcp"); row.N != 2 {
		t.Errorf("%d valid runs of 2\n%s", row.N, progress)
	}
}

// An interrupt ends everything at once and leaves no process.
func TestCancel(t *testing.T) {
	needRoot(t)
	t.Parallel()
	s := replaced(t, `
[workload]
kind = "upload"
duration = "60s"
[[procedure]]
name = "tcp"
transport = "tcp"
`)
	out := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan time.Time, 1)
	go func() {
		// The log is there when the run is under way.
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(out, "logs", "tiny", "base-tcp-cubic-1", "client-iperf3.log")); err == nil {
				asked <- time.Now()
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	_, err := Run(ctx, s, Options{Out: out})
	cancel()
	if cut, ok := errors.AsType[*Interrupted](err); !ok || !errors.Is(err, context.Canceled) || cut.Done != 0 || cut.Of != 1 {
		t.Fatalf("error %v, want that of the context, after 0 of 1 runs", err)
	}
	if took := time.Since(<-asked); took > 10*time.Second {
		t.Errorf("it took %v to end", took)
	}
	if left := processesIn(t, out); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// processesIn lists the command lines of processes that have a file open in
// the folder.
func processesIn(t *testing.T, folder string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && strings.HasPrefix(at, folder) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(link)), "cmdline"))
			found = append(found, string(line))
		}
	}
	return found
}

func TestUnknownVariant(t *testing.T) {
	_, err := Run(t.Context(), parse(t, tiny), Options{Out: t.TempDir(), Variants: []string{"slwo"}})
	if err == nil || !strings.Contains(err.Error(), `did you mean "slow"`) {
		t.Errorf("error %v does not name the nearest variant", err)
	}
}

// A mistake in a host's dcol table is found before anything is built.
func TestBadAgentConfiguration(t *testing.T) {
	s := parse(t, strings.Replace(tiny, `roles = ["client"]`, `roles = ["client"]
dcol = { client = { subflos = 3 } }`, 1)+`
[[host]]
name = "waypoint"
roles = ["waypoint"]
[[link]]
name = "2"
a = "client"
b = "waypoint"
[[procedure]]
name = "dcol"
transport = "mptcp"
detour = "mapped"
`)
	_, err := Run(t.Context(), s, Options{Out: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "configuration of client") || !strings.Contains(err.Error(), `did you mean "subflows"`) {
		t.Errorf("error %v", err)
	}
}
