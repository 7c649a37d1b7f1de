package experiment

import (
	"encoding/json"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/scenario"
)

// script runs a shell on the tiny network with commands from a pipe.
func script(t *testing.T, commands string) (stdout, stderr string, err error) {
	t.Helper()
	return scriptOn(t, tiny, programs.Pair{}, commands)
}

// scriptOn runs a shell on another network, whose hosts run that dcol.
func scriptOn(t *testing.T, text string, program programs.Pair, commands string) (stdout, stderr string, err error) {
	t.Helper()
	r, w, pipeErr := os.Pipe()
	if pipeErr != nil {
		t.Fatal(pipeErr)
	}
	defer r.Close()
	if _, err := w.WriteString(commands); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var out, diagnostics strings.Builder
	err = Shell(t.Context(), parse(t, text), Options{Programs: program, Out: t.TempDir(), Stderr: &diagnostics}, r, &out)
	return out.String(), diagnostics.String(), err
}

func TestShellFromPipe(t *testing.T) {
	needRoot(t)
	t.Parallel()
	out, diagnostics, err := script(t, `
# a comment
hosts
links
set 1 loss 100%
client curl -s -m 1 http://server:9/; echo lost $?
set 1 loss 0% rate 1gbit
set 1 toward server delay 7ms
links
down 1
links
up 1
client
uname -n
curl -s -m 5 http://server:9/; echo refused $?
exit
server uname -n
`)
	if err != nil || diagnostics != "" {
		t.Fatalf("%v: %s", err, diagnostics)
	}
	got := regexp.MustCompile(` +`).ReplaceAllString(out, " ")
	for _, want := range []string{
		"client client 10.", "server server 10.", "fd",
		"1 client - server 20mbit 5ms 0s 0% default up",
		"lost 28\n", // curl: timed out
		"1 client to server 1gbit 7ms 0s 0% default up\n server to client 1gbit 5ms 0s 0% default up",
		"7ms 0s 0% default down",
		"client\nrefused 7\nserver\n", // curl: failed to connect
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestShellMiddlebox(t *testing.T) {
	needRoot(t)
	t.Parallel()
	out, diagnostics, err := scriptOn(t, strings.Replace(behindNAT, `roles = ["waypoint"]`, "", 1), programs.Pair{}, `
middlebox gate drop-options
hosts
gate nft list table inet middlebox | grep -c drop
middlebox gate off
hosts
middlebox gate
middlebox w strip-options
middlebox gates off
middlebox gate strip-option
`)
	if err != nil {
		t.Errorf("what fails on a line is no error of the shell: %v", err)
	}
	got := regexp.MustCompile(` +`).ReplaceAllString(out, " ")
	for _, want := range []string{
		"gate router, NAT of dmz, drop-options 10.", "\n2\n", "gate router, NAT of dmz 10.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	for _, want := range []string{
		"middlebox ROUTER off|KIND", `there is no router "w"`,
		`there is no router "gates"; did you mean "gate"?`, `"strip-option" is nothing a middlebox does; did you mean "strip-options"?`,
	} {
		if !strings.Contains(diagnostics, want) {
			t.Errorf("no %q in:\n%s", want, diagnostics)
		}
	}
}

// Clients begin with every kind of detour, and have those they are told after that.
func TestShellKinds(t *testing.T) {
	needRoot(t)
	t.Parallel()
	out, diagnostics, err := scriptOn(t, kindsNetwork, buildPrograms(t), `
client dcol status --json
kinds client wireguard,mapped
client dcol status --json
kinds client
kinds w mapped
kinds client wire-guard
`)
	if err != nil {
		t.Errorf("what fails on a line is no error of the shell: %v", err)
	}
	answers := json.NewDecoder(strings.NewReader(out))
	for _, want := range []string{"in-band mapped wireguard openvpn", "wireguard mapped"} {
		var status api.Status
		if err := answers.Decode(&status); err != nil {
			t.Fatalf("%v\n%s%s", err, out, diagnostics)
		}
		var got []string
		for _, k := range status.Client.Waypoints[0].Kinds {
			got = append(got, k.Kind)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("it uses %q, want %q", got, want)
		}
	}
	for _, want := range []string{
		"kinds CLIENT in-band,mapped,wireguard,openvpn", `there is no client "w"`, `no kind of detour "wire-guard"; did you mean "wireguard"?`,
	} {
		if !strings.Contains(diagnostics, want) {
			t.Errorf("no %q in:\n%s", want, diagnostics)
		}
	}
}

func TestShellErrors(t *testing.T) {
	needRoot(t)
	t.Parallel()
	_, diagnostics, err := script(t, `
nobody ls
set 1 loss much
set 1 los 1%
set 9 loss 1%
set 1 toward moon loss 1%
down 9
client false
exit
server true
`)
	if err != nil {
		t.Errorf("exit ended the session with %v", err)
	}
	for _, want := range []string{
		`"nobody" is neither a command nor a host`, `loss: "much" is not a share`, `did you mean "loss"`,
		`there is no link "9"`, `not to "moon"`, "on client: exit status 1",
	} {
		if !strings.Contains(diagnostics, want) {
			t.Errorf("no %q in:\n%s", want, diagnostics)
		}
	}
}

// Users are told where the workload's server listens, if there is one.
func TestShellWelcome(t *testing.T) {
	s := scenario.Scenario{Name: "near", Hosts: []scenario.Host{{Name: "client"}, {Name: "server"}}, Workload: scenario.Workload{Server: "server", Port: 5201}}
	sh := &shell{lab: &Lab{Scenario: &s}}
	if got := sh.welcome(); got != "near is up: client, server. Type help for a list of commands." {
		t.Errorf("without a workload: %q", got)
	}
	s.Procedures = []scenario.Procedure{{Name: "tcp"}}
	if got := sh.welcome(); got != "near is up: client, server. The workload's server listens on TCP port 5201 of server. Type help for a list of commands." {
		t.Errorf("with a workload: %q", got)
	}
}

// Users are shown how to make the workload's traffic.
func TestExampleTraffic(t *testing.T) {
	server := netip.MustParseAddr("10.0.2.2")
	for kind, want := range map[scenario.WorkloadKind]string{
		scenario.Download: "dcol run iperf3 -c 10.0.2.2 -p 80 -t 60 -R",
		scenario.Upload:   "dcol run iperf3 -c 10.0.2.2 -p 80 -t 60",
		scenario.HTTP:     "dcol run curl -o /dev/null http://10.0.2.2:80/noise-1000",
		scenario.Stream:   "",
	} {
		if got := exampleTraffic(scenario.Workload{Kind: kind, Port: 80, Size: 1000}, server); got != want {
			t.Errorf("%v: %q, want %q", kind, got, want)
		}
	}
}

// The shell ends well whatever failed in it last, as docs/lab.md says.
func TestShellEndsWell(t *testing.T) {
	needRoot(t)
	t.Parallel()
	if _, diagnostics, err := script(t, "client true\nclient exit 3\n"); err != nil || !strings.Contains(diagnostics, "exit status 3") {
		t.Errorf("error %v; said %q", err, diagnostics)
	}
}

// Faults by hand, with mistakes.
func TestShellFaults(t *testing.T) {
	needRoot(t)
	t.Parallel()
	out, diagnostics, err := scriptOn(t, kindsNetwork, buildPrograms(t), `
set home burst 1% burst_length 4
set home toward west tamper 2%
links
agent w kill
w dcol status
agent w freeze
agent w start
agent w start
agent client freeze
agent client thaw
client dcol status --json
hosts
renumber client home
renumber client out
hosts
drop-tcp w on
drop-tcp w
agent server kill
agent w thow
`)
	if err != nil {
		t.Fatalf("%v: %s", err, diagnostics)
	}
	got := regexp.MustCompile(` +`).ReplaceAllString(out, " ")
	for _, want := range []string{
		"home client to west unlimited 0s 0s 0% default up, burst 1% burst_length 4 tamper 2%\n west to client",
		"default up, burst 1% burst_length 4\n", "client client 10.0.1.1 fd00::1:1\n", "client client 10.0.1.3 fd00::1:3\n", `"client": {`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	for _, want := range []string{
		"the agent of w does not run", "the agent of w runs already", "it is not on that link", "drop-tcp HOST on|off",
		`no agent runs on "server"`, `"thow" is nothing that happens to an agent; did you mean "thaw"?`,
	} {
		if !strings.Contains(diagnostics, want) {
			t.Errorf("no %q in:\n%s", want, diagnostics)
		}
	}
}

func TestComplete(t *testing.T) {
	words := []string{"client", "server", "set", "exit"}
	tests := []struct {
		line string
		want string
		ok   bool
	}{
		{"cl", "client ", true},
		{"se", "", false},
		{"set", "set ", true},
		{"x", "", false},
		{"client ca", "", false},
	}
	for _, test := range tests {
		got, _, ok := complete(test.line, len(test.line), '\t', words)
		if got != test.want || ok != test.ok {
			t.Errorf("complete(%q) = %q, %v", test.line, got, ok)
		}
	}
	if _, _, ok := complete("cl", 2, 'i', words); ok {
		t.Error("a letter completed the line")
	}
}
