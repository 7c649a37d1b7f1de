package experiment

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
)

// runOn runs the only procedure of a network with agents, once.
func runOn(t *testing.T, program programs.Pair, text string, variants ...string) (run report.Run, out string) {
	t.Helper()
	var progress strings.Builder
	out = t.TempDir()
	o := Options{Programs: program, Out: out, Variants: variants, Stderr: &progress, anyFidelity: true}
	result, err := Run(t.Context(), parse(t, text), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	run = result.Runs[len(result.Runs)-1]
	if !run.Valid() {
		t.Fatalf("it does not count: %s\n%s", run.Discarded, progress.String())
	}
	return run, out
}

const streamOverDetour = kindsNetwork + `
[workload]
kind = "stream"
direction = "download"
duration = "5s"
[[procedure]]
name = "p"
transport = "mptcp"
detour = "mapped"
`

// Agents are frozen, killed and started, and the client moves, while messages go
// on: none is lost, and no agent that was told to end fails the run.
func TestFaultsOfAgentsAndAddresses(t *testing.T) {
	needRoot(t)
	t.Parallel()
	text := streamOverDetour
	for i, what := range []string{
		`host = "w"` + "\n" + `agent = "freeze"`, `host = "w"` + "\n" + `agent = "thaw"`,
		`host = "w"` + "\n" + `agent = "kill"`, `host = "w"` + "\n" + `agent = "start"`,
		`host = "client"` + "\n" + `agent = "restart"`,
		`host = "w"` + "\n" + `drop_tcp = true`, `host = "w"` + "\n" + `drop_tcp = false`,
		`host = "client"` + "\n" + `renumber = "home"` + "\n" + `gap = "200ms"`,
		`host = "w"` + "\n" + `agent = "stop"`,
	} {
		text += fmt.Sprintf("[[event]]\nat = \"%dms\"\n%s\n", 400*(i+1), what)
	}
	run, out := runOn(t, buildPrograms(t), text)
	if run.Latency == nil || run.Latency.Count != 250 {
		t.Errorf("latencies: %+v, want those of 250 messages", run.Latency)
	}
	// The client's two agents, before and after the restart.
	log, err := os.ReadFile(out + "/" + run.Log + "/client-agent.log")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(log, []byte("agent is running")); n != 2 {
		t.Errorf("the client's agent was started %d times, want twice:\n%s", n, log)
	}
}

// What a waypoint drops, it drops on its fast path too.
func TestDroppedTCPStandsStill(t *testing.T) {
	needRoot(t)
	t.Parallel()
	run, _ := runOn(t, buildPrograms(t), kindsNetwork+`
[workload]
kind = "upload"
duration = "4s"
[[procedure]]
name = "p"
transport = "tcp"
detour = "mapped"
[[event]]
at = "1s"
host = "w"
drop_tcp = true
[[event]]
at = "2500ms"
host = "w"
drop_tcp = false
`)
	if run.LongestStallMS < 1300 || run.GoodputMbps == 0 {
		t.Errorf("with nothing forwarded for 1.5 s the longest stall is %.0f ms, the goodput %.2f Mbit/s", run.LongestStallMS, run.GoodputMbps)
	}
}

// An agent that ends without being told fails the run.
func TestAgentThatCrashesFailsTheRun(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l, err := Open(t.Context(), parse(t, streamOverDetour), Options{Programs: buildPrograms(t), Out: t.TempDir(), anyFidelity: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.agents.act(t.Context(), "w", scenario.RestartAgent); err != nil {
		t.Fatal(err)
	}
	if err := l.agents.failed(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	l.agents.all["w"].Kill()
	if err := l.agents.failed(); err == nil || !strings.Contains(err.Error(), "agent on w") {
		t.Errorf("after a crash: %v", err)
	}
	base, _ := l.Scenario.Variant(scenario.Base)
	_, err = l.Execute(t.Context(), Order{Variant: base, Procedure: l.Scenario.Procedures[0], Log: "again"})
	if !runner.IsDColFailure(err) {
		t.Errorf("a run without the waypoint's agent ends with %v, which is not held against dcol", err)
	}
}

// Hosts of other kinds than usual.
func TestHostsWithout(t *testing.T) {
	needRoot(t)
	t.Parallel()
	program := buildPrograms(t)
	for _, test := range []struct {
		name, host, key, detour string
		carries                 bool
	}{
		{"subflows", "server", `mptcp_subflows = 0`, "mapped", false},
		{"MPTCP", "server", `mptcp = false`, "mapped", false},
		{"IPv4, at the server", "server", `ipv6_only = true`, "mapped", true},
		{"IPv4, at the client", "client", `ipv6_only = true`, "mapped", true},
		{"configuration", "server", ``, "default", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			role := fmt.Sprintf("roles = [%q]", test.host)
			run, _ := runOn(t, program, strings.Replace(kindsNetwork, role, role+"\n"+test.key, 1)+`
[workload]
kind = "http"
size = "2MB"
[[procedure]]
name = "p"
transport = "mptcp"
detour = "`+test.detour+`"
`)
			detour := run.PathBytes("w")
			if test.carries != (detour > 3e5) || run.PathBytes(scenario.DirectPath) == 0 {
				t.Errorf("the paths carried %+v", run.Paths)
			}
		})
	}
}

// A variant has other kinds than the agents' own.
func TestKindsOfAVariant(t *testing.T) {
	needRoot(t)
	t.Parallel()
	s := parse(t, kindsNetwork+`
[workload]
kind = "http"
size = "1MB"
[[procedure]]
name = "p"
transport = "mptcp"
detour = "default"
[[variant]]
name = "tunnel"
kinds = ["wireguard", "mapped"]
`)
	program := buildPrograms(t)
	for _, name := range s.VariantNames() {
		l, err := Open(t.Context(), s, Options{Programs: program, Out: t.TempDir(), Variants: []string{name}, anyFidelity: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		v, _ := s.Variant(name)
		if err := l.startClientAgent(t.Context(), s.Procedures[0], v); err != nil {
			t.Fatal(err)
		}
		status, err := l.crew.Status(t.Context(), "client")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range status.Client.Waypoints[0].Kinds {
			got = append(got, k.Kind)
		}
		if own := !slices.Equal(got, []string{"wireguard", "mapped"}); own != (name == scenario.Base) || len(got) == 0 {
			t.Errorf("%s: the client uses %v", name, got)
		}
	}
}

// The keys of a network's members are nowhere but on its hosts: nothing has to clean
// them up when the lab is killed.
func TestKeysStayOnHosts(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	program := buildPrograms(t)
	t.Setenv("TMPDIR", dir)
	l, err := Open(t.Context(), parse(t, streamOverDetour), Options{Programs: program, Out: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("while it runs there is %v, %v", entries, err)
	}
	if _, err := l.net.Host("w").ReadFile(crew.FilesIn(crew.IdentityDir(false)).Key); err != nil {
		t.Error(err)
	}
}

// With a coordinator, the members create a collective as users would. Clients without
// configuration find the waypoint in its directory. The coordinator may die.
func TestCoordinator(t *testing.T) {
	needRoot(t)
	t.Parallel()
	program := buildPrograms(t)
	for _, detour := range []string{"mapped", "default"} {
		t.Run(detour, func(t *testing.T) {
			t.Parallel()
			run, _ := runOn(t, program, kindsNetwork+`
[[host]]
name = "hub"
roles = ["coordinator"]
[[link]]
name = "hub"
a = "hub"
b = "east"
[workload]
kind = "upload"
duration = "4s"
[[procedure]]
name = "p"
transport = "mptcp"
detour = "`+detour+`"
[[event]]
at = "1s"
host = "hub"
agent = "kill"
[[event]]
at = "2s"
host = "hub"
agent = "start"
`)
			if run.PathBytes("w") < 3e5 || run.PathBytes(scenario.DirectPath) == 0 {
				t.Errorf("the paths carried %+v", run.Paths)
			}
		})
	}
}
