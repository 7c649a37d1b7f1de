package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// A WireGuard tunnel serves connections that need one, and nothing else on the host uses
// it. What comes out of it at the waypoint is under the same policy as any detour.
func TestWireGuard(t *testing.T) { testTunnel(t, "wireguard") }

// The same for OpenVPN.
func TestOpenVPN(t *testing.T) { testTunnel(t, "openvpn") }

func testTunnel(t *testing.T, kind string) {
	w := withKinds(newWorldWith(t, func(s *testbed.Spec) {
		for i := range s.Links {
			if s.Links[i].Name == alice {
				s.Links[i].MTU = 1400
			}
		}
	}), kind)
	w.configure(bob, waypointConfig(labAllowed+fmt.Sprintf("offers = [%q]\ndeny = [\"%v/32\"]\n", kind, w.addr4(mallory))))
	routes := w.run(alice, "ip", "route")
	w.startBoth()
	w.kindIs(kind, "ready")
	x := w.curl(w.url())
	d := detour(w.subflows("direct up", kind+" up"))
	if d.Remote.Addr() != w.addr4(server) || d.Remote.Port() != 80 || d.Waypoint != bob {
		t.Errorf("the detour is %+v, want one to the server itself", d)
	}
	inside := d.Local.Addr()
	if inside == w.addr4(alice) || !inside.IsPrivate() {
		t.Errorf("the detour is from %v", inside)
	}
	w.cut()
	x.goesOn()
	w.mend()
	if s := w.mustStatus(bob).Serving; len(s.Members) != 1 || s.Members[0].Tunnels == 0 || s.Members[0].Flows != 1 {
		t.Errorf("bob says of whom it serves: %+v", s)
	}
	log := w.run(bob, "cat", "/var/log/dcol/attribution.jsonl")
	for _, want := range []string{
		`"event":"admission-granted","member":"alice"`,
		fmt.Sprintf(`"kind":%q`, kind),
		fmt.Sprintf(`"tunnel":"%v"`, inside),
		fmt.Sprintf(`"server":"%v:80"`, w.addr4(server)),
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the attribution log does not say %s:\n%s", want, log)
		}
	}

	// Nothing else goes by the tunnel.
	if now := w.run(alice, "ip", "route"); now != routes {
		t.Errorf("alice's routes are\n%s\nand were\n%s", now, routes)
	}
	for _, to := range []string{w.addr4(server).String(), w.addr4(bob).String(), "198.51.100.1"} {
		if way := w.run(alice, "ip", "route", "get", to); strings.Contains(way, "dcol") {
			t.Errorf("packets to %s go by the tunnel: %s", to, way)
		}
	}
	flows := len(w.ourFlows())
	w.run(alice, "curl", "--silent", "--fail", "--range", "0-99999", "--output", "/dev/null", w.url())
	if now := len(w.ourFlows()); now != flows {
		t.Errorf("another program's connection went by way of bob: %q", w.ourFlows())
	}
	w.wholePackets(alice)
	w.wholePackets(bob)

	// What a member may not do by way of its tunnel.
	from := "bind=" + inside.String()
	refused := func(what string, to string) {
		t.Helper()
		began := time.Now()
		r := w.try(alice, "socat", "-u", fmt.Sprintf("TCP:%s,%s,connect-timeout=9", to, from), "-")
		if r.code == 0 || !strings.Contains(r.stderr, "refused") && !strings.Contains(r.stderr, "reset") {
			t.Errorf("%s: %v after %v", what, r, time.Since(began))
		}
	}
	unreached := func(what string, to string) {
		t.Helper()
		if r := w.try(alice, "socat", "-u", fmt.Sprintf("TCP:%s,%s,connect-timeout=1", to, from), "-"); r.code == 0 {
			t.Errorf("%s: %v", what, r)
		}
	}
	w.listen(bob, 8000)
	w.listen(mallory, 8000)
	w.listen(server, 25)
	refused("a denied destination", port(w.addr4(mallory), 8000))
	refused("a denied port", port(w.addr4(server), 25))
	unreached("the waypoint's own service", port(w.addr4(bob), 8000))
	gateway := strings.Fields(w.run(bob, "ip", "-4", "-o", "addr", "show", "dev", w.tunnelAtBob(kind)))[3]
	unreached("the waypoint's own service in the tunnel", strings.Split(gateway, "/")[0]+":8000")
	w.run(alice, "curl", "--silent", "--fail", "--interface", inside.String(), "--range", "0-99", "--output", "/dev/null", w.url())

	// A member that is revoked loses its tunnel.
	w.dcol(server, "ca", "revoke", alice, "--dir", w.caDir("collective"))
	w.carry("collective", bob, "ca.crl")
	w.eventually("the tunnel is taken from a revoked member", func() error {
		s := w.mustStatus(bob).Serving
		left := w.try(bob, "nft", "list", "map", "inet", "dcol", "tunnels4").stdout
		return holds(len(w.ourFlows()) == 0 && !strings.Contains(left, inside.String()), "bob still serves %+v", s)
	})
	x.goesOn()
	x.endsWell()
}

// Where the waypoint leads nobody, no tunnel does either, and the status says so of a
// client that has nothing but tunnels.
func TestForbiddenByTunnel(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"wireguard", "openvpn"} {
		t.Run(kind, func(t *testing.T) {
			w := withKinds(newWorld(t), kind)
			w.configure(bob, waypointConfig(fmt.Sprintf("offers = [%q]\n", kind)))
			w.startBoth()
			w.kindIs(kind, "ready")
			x := w.curl(w.url())
			w.eventually("the status says why the tunnel is not used", func() error {
				status := w.dcol(alice, "status")
				return holds(strings.Contains(status, fmt.Sprintf("bob, %s: rests towards %v:80", kind, w.addr4(server))), "it says\n%s", status)
			})
			w.subflows("direct up")
			w.kindIs(kind, "ready") // for other servers
			x.goesOn()
			x.endsWell()
		})
	}
}

// tunnelAtBob returns the name of bob's end.
func (w *world) tunnelAtBob(kind string) string {
	return map[string]string{"wireguard": "dcolwg", "openvpn": "dcolov"}[kind]
}

// wholePackets demands that a host has neither cut a packet into fragments nor put one
// together.
func (w *world) wholePackets(host string) {
	w.Helper()
	counts := w.run(host, "nstat", "-asz", "IpReasmReqds", "IpFragCreates", "Ip6ReasmReqds", "Ip6FragCreates")
	for line := range strings.Lines(counts) {
		if f := strings.Fields(line); len(f) > 1 && !strings.HasPrefix(line, "#") && f[1] != "0" {
			w.Errorf("on %s there are fragments: %s", host, strings.TrimSpace(line))
		}
	}
}
