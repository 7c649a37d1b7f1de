package experiment

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// A socket's path goes by its peer, unless it starts from a tunnel; one that comes
// up in mid-run is found.
func TestTapPath(t *testing.T) {
	addr := netip.MustParseAddr
	server, waypoint, own, tunnel := addr("10.0.9.1"), addr("10.0.1.1"), addr("10.0.0.1"), addr("10.77.0.9")
	var ends []crew.TunnelEnd
	looks := 0
	tap := &hostSockets{
		byPeer: map[netip.Addr]string{server: "direct", waypoint: "w"}, byLocal: map[netip.Addr]string{},
		tunnels: func() ([]crew.TunnelEnd, error) { looks++; return ends, nil },
		first:   func(a netip.Addr) netip.Addr { return a },
	}
	pathOf := func(from, to netip.Addr) string {
		t.Helper()
		got, err := tap.path(netlink.SocketID{Source: net.IP(from.AsSlice()), Destination: net.IP(to.AsSlice())})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	both := addr("10.0.2.1") // a converter that is a waypoint too
	tap.byPeer[both], tap.converters = "both", map[netip.Addr]bool{both: true, addr("10.0.3.1"): true}
	for to, want := range map[netip.AddrPort]string{
		netip.AddrPortFrom(both, rfc8803.Port): "direct", netip.AddrPortFrom(both, 40001): "both",
		netip.MustParseAddrPort("10.0.3.1:5124"): "direct", netip.MustParseAddrPort("10.0.3.1:40001"): "",
	} {
		got, err := tap.path(netlink.SocketID{Source: net.IP(own.AsSlice()), Destination: net.IP(to.Addr().AsSlice()), DestinationPort: to.Port()})
		if err != nil || got != want {
			t.Errorf("to a converter's %v: %q, %v, want %q", to, got, err, want)
		}
	}
	mapped := netip.AddrFrom16(own.As16()) // as an IPv6 socket has it
	for _, test := range []struct {
		from, to netip.Addr
		want     string
	}{
		{own, server, "direct"}, {own, waypoint, "w"}, {mapped, server, "direct"}, {own, addr("10.0.5.5"), ""}, {own, own, ""},
	} {
		if got := pathOf(test.from, test.to); got != test.want {
			t.Errorf("%v to %v: %q, want %q", test.from, test.to, got, test.want)
		}
	}
	if looks != 1 {
		t.Errorf("looked %d times for the tunnels, want once for one address", looks)
	}
	ends = []crew.TunnelEnd{{Kind: path.WireGuard, Waypoint: "w", Addr: tunnel}}
	if got := pathOf(tunnel, server); got != "w" {
		t.Errorf("through the tunnel: %q", got)
	}
	if got := pathOf(own, server); got != "direct" {
		t.Errorf("beside the tunnel: %q", got)
	}
}

// kindsNetwork has two ways of 8 Mbit/s, one of them by a waypoint.
const kindsNetwork = `
schema = "dcol.scenario/1"
name = "kinds"
` + clientAndServer + `
[[host]]
name = "w"
roles = ["waypoint"]
[[host]]
name = "west"
roles = ["router"]
[[host]]
name = "east"
roles = ["router"]
[[link]]
name = "home"
a = "client"
b = "west"
[[link]]
name = "rack"
a = "east"
b = "server"
[[link]]
name = "direct"
a = "west"
b = "east"
rate = "8mbit"
delay = "5ms"
[[link]]
name = "in"
a = "west"
b = "w"
rate = "8mbit"
delay = "5ms"
cost = 10
[[link]]
name = "out"
a = "w"
b = "east"
cost = 10
`

// Every kind of detour carries what it should: MPTCP's second path, or the whole
// of a TCP connection that is bound to its tunnel.
func TestRunByKind(t *testing.T) {
	needRoot(t)
	t.Parallel()
	program := buildPrograms(t)
	for _, kind := range scenario.Kinds() {
		for _, transport := range []scenario.Transport{scenario.TCP, scenario.MPTCP} {
			if kind == scenario.InBand && transport == scenario.TCP {
				continue
			}
			t.Run(string(kind)+"-"+string(transport), func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath("openvpn"); err != nil && kind == scenario.OpenVPN {
					t.Skip("openvpn is not installed: apt-get install openvpn")
				}
				run := runKind(t, program, kind, transport)
				direct, detour := run.PathBytes(scenario.DirectPath), run.PathBytes("w")
				if detour < 3e5 || (direct == 0) != (transport == scenario.TCP) {
					t.Errorf("of 2 MB %d bytes went directly and %d through the waypoint", direct, detour)
				}
			})
		}
	}
}

func runKind(t *testing.T, program programs.Pair, kind scenario.Detour, transport scenario.Transport) report.Run {
	t.Helper()
	s := parse(t, kindsNetwork+`
[workload]
kind = "http"
size = "2MB"
[[procedure]]
name = "p"
transport = "`+string(transport)+`"
detour = "`+string(kind)+`"
`)
	var progress strings.Builder
	result, err := Run(t.Context(), s, Options{Programs: program, Out: t.TempDir(), Stderr: &progress, anyFidelity: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	return result.Runs[len(result.Runs)-1]
}

// A kind that does not become ready is an error that says why.
func TestKindIsNotReady(t *testing.T) {
	needRoot(t)
	t.Parallel()
	s := parse(t, strings.Replace(kindsNetwork, `roles = ["waypoint"]`, `roles = ["waypoint"]
dcol = { waypoint = { offers = ["mapped"] } }`, 1)+`
[workload]
kind = "http"
size = "2MB"
[[procedure]]
name = "p"
transport = "mptcp"
detour = "wireguard"
`)
	program := buildPrograms(t)
	l, err := Open(t.Context(), s, Options{Programs: program, Out: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	base, _ := s.Variant(scenario.Base)
	_, err = l.Execute(t.Context(), Order{Variant: base, Procedure: s.Procedures[0], Log: "p"})
	if err == nil || !strings.Contains(err.Error(), "no wireguard detour through waypoint w: it is not-offered") {
		t.Errorf("error %v", err)
	}
}
