package experiment

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/scenario"
)

// converterNetwork has two ways of 8 Mbit/s to a plain server, and a converter beside it.
var converterNetwork = strings.Replace(kindsNetwork, `roles = ["server"]`, `roles = ["server"]
mptcp = false
[[host]]
name = "c"
roles = ["converter"]
[[link]]
name = "c"
a = "c"
b = "east"`, 1)

// Every kind of traffic that a proxy or the kernel can lead to a converter reaches a server without MPTCP over two paths.
func TestRunThroughConverter(t *testing.T) {
	needRoot(t)
	t.Parallel()
	program := buildPrograms(t)
	for _, test := range []struct{ name, workload, way string }{
		{"curl, SOCKS5", "kind = \"http\"\nsize = \"2MB\"", `proxy = "socks5"`},
		{"curl, HTTP CONNECT", "kind = \"http\"\nsize = \"2MB\"", `proxy = "http"`},
		{"curl, captured", "kind = \"http\"\nsize = \"2MB\"", "capture = true"},
		{"stream", "kind = \"stream\"\nrate = \"12mbit\"\nduration = \"2s\"\ndirection = \"download\"", `proxy = "socks5"`},
		{"command", `kind = "command"
port = 7
server_command = ["python3", "-m", "http.server", "{port}", "--directory", "/usr/bin"]
client_command = ["curl", "--silent", "--fail", "--output", "/dev/null", "--proxy", "{proxy}", "http://{address}:{port}/python3"]`, `proxy = "socks5"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := parse(t, converterNetwork+"[workload]\n"+test.workload+`
[[procedure]]
name = "p"
transport = "mptcp"
detour = "mapped"
converter = "always"
`+test.way+"\n")
			var progress strings.Builder
			result, err := Run(t.Context(), s, Options{Programs: program, Out: t.TempDir(), Stderr: &progress, anyFidelity: true})
			if err != nil {
				t.Fatalf("%v\n%s", err, progress.String())
			}
			run := result.Runs[len(result.Runs)-1]
			direct, detour := run.PathBytes(scenario.DirectPath), run.PathBytes("w")
			if direct < 2e5 || detour < 2e5 || run.GoodputMbps < 8 {
				t.Errorf("%d bytes went directly and %d through the waypoint, at %.2f Mbit/s", direct, detour, run.GoodputMbps)
			}
		})
	}
}

// A telephone without dcol is behind a gateway with NAT, whose agent leads its connection through the converter. Without
// a converter it is forwarded.
func TestRunBehindGateway(t *testing.T) {
	needRoot(t)
	t.Parallel()
	program := buildPrograms(t)
	network := strings.Replace(converterNetwork, "name = \"client\"\nroles = [\"client\"]", `name = "client"
roles = ["client", "router"]
nat = ["lan"]
lan = ["lan"]
[[host]]
name = "phone"
[[link]]
name = "lan"
a = "phone"
b = "client"`, 1)
	s := parse(t, network+`[workload]
kind = "http"
size = "2MB"
client = "phone"
[[procedure]]
name = "tcp"
transport = "tcp"
[[procedure]]
name = "tcp-detour"
transport = "tcp"
detour = "mapped"
[[procedure]]
name = "gateway"
transport = "mptcp"
detour = "mapped"
converter = "always"
`)
	var progress strings.Builder
	result, err := Run(t.Context(), s, Options{Programs: program, Out: t.TempDir(), Stderr: &progress, anyFidelity: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	for _, want := range []struct {
		procedure        string
		direct, waypoint int64 // bytes at least
	}{{"tcp", 2e6, 0}, {"tcp-detour", 0, 2e6}, {"gateway", 2e5, 2e5}} {
		for _, run := range result.Runs {
			direct, detour := run.PathBytes(scenario.DirectPath), run.PathBytes("w")
			if run.Procedure == want.procedure && (direct < want.direct || detour < want.waypoint || direct > 0 != (want.direct > 0) || detour > 0 != (want.waypoint > 0)) {
				t.Errorf("%s: %d bytes went directly and %d through the waypoint", run.Procedure, direct, detour)
			}
		}
	}
	if len(result.Runs) != 3 {
		t.Errorf("%d runs", len(result.Runs))
	}
}
