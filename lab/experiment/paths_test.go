package experiment

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// behindNAT has a client and a waypoint, each behind a NAT of its own.
const behindNAT = `
schema = "dcol.scenario/1"
name = "behind-nat"
repetitions = 1
[[host]]
name = "client"
roles = ["client"]
[[host]]
name = "home"
roles = ["router"]
nat = ["lan"]
[[host]]
name = "server"
roles = ["server"]
[[host]]
name = "gate"
roles = ["router"]
nat = ["dmz"]
forward = [{ protocol = "udp", port = 45672, to = "w" }]
[[host]]
name = "w"
roles = ["waypoint"]
[[link]]
name = "lan"
a = "client"
b = "home"
[[link]]
name = "wan"
a = "home"
b = "gate"
rate = "8mbit"
[[link]]
name = "dmz"
a = "w"
b = "gate"
[[link]]
name = "rack"
a = "gate"
b = "server"
[workload]
kind = "http"
size = "1MB"
[[procedure]]
name = "tcp"
transport = "tcp"
`

func TestAddressesBehindNAT(t *testing.T) {
	needRoot(t)
	t.Parallel()
	s := parse(t, behindNAT)
	l, err := Open(t.Context(), s, Options{Out: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	on := func(host, link string) netip.Addr {
		v4, _ := l.net.Host(host).AddrOn(link)
		return v4
	}
	for _, test := range []struct {
		addr           netip.Addr
		client, server string // what path it is on, seen from there
	}{
		{on("home", "wan"), "", "direct"},
		{on("home", "lan"), "", ""},
		{on("gate", "wan"), "w", "w"},
		{on("gate", "rack"), "w", "w"},
		{on("gate", "dmz"), "", ""},
		{on("client", "lan"), "", "direct"},
		{on("server", "rack"), "direct", ""},
		{on("w", "dmz"), "w", "w"},
	} {
		if got := l.paths.client[test.addr]; got != test.client {
			t.Errorf("the client sees %v on path %q, want %q", test.addr, got, test.client)
		}
		if got := l.paths.server[test.addr]; got != test.server {
			t.Errorf("the server sees %v on path %q, want %q", test.addr, got, test.server)
		}
	}

	w, c := l.net.Host("w"), l.net.Host("client")
	same := cmpopts.EquateComparable(netip.Addr{})
	for _, test := range []struct {
		client, host string
		want         []netip.Addr
	}{
		{"client", "w", []netip.Addr{on("gate", "wan"), w.Addr6()}},
		{"w", "client", []netip.Addr{c.Addr4(), c.Addr6()}}, // nothing is forwarded there
		{"w", "w", []netip.Addr{w.Addr4(), w.Addr6()}},
	} {
		if diff := cmp.Diff(test.want, reachedAt(s, l.net.Network, test.client, test.host), same); diff != "" {
			t.Errorf("%s reaches %s at (-want +got):\n%s", test.client, test.host, diff)
		}
	}
}

// A run whose client is behind a NAT is a run like others.
func TestRunBehindNAT(t *testing.T) {
	needRoot(t)
	t.Parallel()
	result, err := Run(t.Context(), parse(t, behindNAT), Options{Out: t.TempDir(), anyFidelity: true})
	if err != nil {
		t.Fatal(err)
	}
	run := result.Runs[len(result.Runs)-1]
	if run.Discarded != "" || len(run.Paths) != 1 || run.Paths[0].Path != "direct" || run.Paths[0].Bytes < 5e5 {
		t.Errorf("%+v", run)
	}
}
