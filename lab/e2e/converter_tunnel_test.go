package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/testbed"
)

// inTunnels is the table client.converter of an alice who reaches converters in tunnels only.
func inTunnels() string {
	return fmt.Sprintf("[client.converter]\nuse = \"always\"\ntunnel = \"wireguard\"\nproxy = %q\n", proxyAddress)
}

// watchClear has the router count the TCP packets that are alice's, or of an address in a tunnel, and so in clear. mallory forwards
// her part to the converter as TCP, which does not count. It returns a function that returns the rules of those that there were.
func (w *world) watchClear() func() []string {
	w.Helper()
	fours, sixes := fmt.Sprintf("{ %v, 10.192.0.0/11 }", w.addr4(alice)), fmt.Sprintf("{ %v, fd64:636f:6c00::/48 }", w.addr6(alice))
	w.run(router, "nft", fmt.Sprintf("table inet watch {\nchain forward {\ntype filter hook forward priority -300\n"+
		"ip saddr %[1]s tcp dport 5124 counter\nip daddr %[1]s tcp sport 5124 counter\nip saddr %[1]s meta l4proto tcp counter\n"+
		"ip6 saddr %[2]s tcp dport 5124 counter\nip6 daddr %[2]s tcp sport 5124 counter\nip6 saddr %[2]s meta l4proto tcp counter\n}\n}", fours, sixes))
	return func() (rules []string) {
		w.Helper()
		for line := range strings.Lines(w.run(router, "nft", "list", "table", "inet", "watch")) {
			if strings.Contains(line, "counter packets") && !strings.Contains(line, "counter packets 0 ") {
				rules = append(rules, strings.TrimSpace(line))
			}
		}
		return rules
	}
}

// fetchedInTunnel starts bob and alice, whose converter he is, and a transfer that he converts.
func (w *world) fetchedInTunnel() (x *transfer) {
	w.Helper()
	w.start(bob)
	w.start(alice)
	w.converterReady("alice is admitted")
	x = w.fetched("socks5")
	x.goesOn()
	w.accepts(1)
	return x
}

// stayedInTunnel ends a transfer, of which nothing has been in clear although alice has had other agents. Her status says why it had
// no detours.
func (w *world) stayedInTunnel(x *transfer, inClear func() []string, why string) {
	w.Helper()
	w.converterReady("alice is admitted again")
	if status := w.dcol(alice, "status"); !strings.Contains(status, why) {
		w.Errorf("the status does not say that there are no detours:\n%s", status)
	}
	if rules := inClear(); len(rules) > 0 {
		w.Errorf("in clear there were %q", rules)
	}
	x.endsWell()
	w.accepts(1)
}

// With client.converter.tunnel, also the first subflow to a converter is in a WireGuard tunnel, to the converter's own host: on
// the way from alice there is no TCP. The connection goes on when that tunnel has ended, and new ones then go directly, never to
// the converter in clear.
func TestConverterInTunnel(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]func(w *world, host string) netip.Addr{"IPv4": (*world).addr4, "IPv6": (*world).addr6} {
		t.Run(name, func(t *testing.T) {
			w := standard(plainWorld(t))
			w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective"))
			w.identify("collective", mallory)
			w.configure(mallory, strings.ReplaceAll(waypointConfig(kindsLineOf("offers", "wireguard", "mapped")+labAllowed), bob, mallory))
			w.configure(bob, waypointConfig(kindsLineOf("offers", "wireguard", "converter")+labAllowed))
			w.configure(alice, clientOfAll("", addr(w, bob).String())+
				"[[client.waypoint]]\nname = \"mallory\"\naddresses = [\""+addr(w, mallory).String()+"\"]\n"+
				inTunnels())
			inClear := w.watchClear()
			for _, host := range []string{mallory, bob, alice} {
				w.start(host)
			}
			w.converterReady("alice is admitted")
			x := w.fetched("socks5")
			w.eventually("subflows to the converter in both tunnels", func() error {
				for _, c := range w.mustStatus(alice).Client.Connections {
					if c.Remote.Addr() == addr(w, bob) && len(c.Subflows) == 2 && c.Subflows[0].Local.Addr() != addr(w, alice) &&
						c.Subflows[1].Waypoint == mallory && c.Subflows[1].Kind == "wireguard" && c.Subflows[1].State == "up" {
						return nil
					}
				}
				return fmt.Errorf("alice has %+v", w.mustStatus(alice).Client.Connections)
			})
			x.goesOn()
			w.accepts(1)
			w.transfer(alice, program, "run", "--", "python3", "-c", blockingFetch, w.addr4(server).String()).endsWell()
			w.accepts(2)
			if rules := inClear(); len(rules) > 0 {
				t.Errorf("in clear there were %q", rules)
			}
			w.last(alice).kill()
			w.start(alice)
			x.goesOn()
			w.restart(alice)
			x.goesOn()
			w.converterReady("alice is admitted again")
			x.goesOn()
			if rules := inClear(); len(rules) > 0 {
				t.Errorf("with new agents, in clear there were %q", rules)
			}
			w.configure(bob, waypointConfig(kindsLineOf("offers", "converter", "mapped")+labAllowed))
			w.restart(bob)
			w.eventually("the status says why the converter is not used", func() error {
				status := w.dcol(alice, "status")
				return holds(strings.Contains(status, `not bob, which this host cannot use (it offers no "wireguard"`), "it says\n%s", status)
			})
			x.goesOn()
			w.fetched("socks5").endsWell()
			x.endsWell()
			if rules := strings.Join(inClear(), "\n"); strings.Contains(rules, "port 5124") || !strings.Contains(rules, w.addr4(alice).String()) {
				t.Errorf("in clear there were, after bob offers no tunnel,\n%s", rules)
			}
		})
	}
}

// Connections to a converter in client.exclude get no detours, and go on in its tunnel whatever happens to alice's agents, of which two end
// at once. Nothing of them is in clear then.
func TestExcludedConverterInTunnel(t *testing.T) {
	w := standard(plainWorld(t))
	w.configure(bob, waypointConfig(kindsLineOf("offers", "wireguard", "converter")+labAllowed))
	excluded := fmt.Sprintf("exclude = [\"%v/32\"]", w.addr4(bob))
	w.configure(alice, strings.Replace(clientOfAll("", w.addr4(bob).String()), "exclude = []", excluded, 1)+inTunnels())
	inClear := w.watchClear()
	x := w.fetchedInTunnel()
	w.last(alice).kill()
	w.start(alice)
	x.goesOn()
	w.restart(alice)
	w.restart(alice)
	x.goesOn()
	w.stayedInTunnel(x, inClear, "no detours to it, because its address is in client.exclude")
}

// A program writes all the time. Nothing leaves in clear while alice has no agent, and so no tunnel, even if her firewall is reloaded
// then. With the next agent the program's connection goes on.
func TestNoAgentForTunnel(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]func(w *world, host string) netip.Addr{"IPv4": (*world).addr4, "IPv6": (*world).addr6} {
		t.Run(name, func(t *testing.T) {
			w := standard(plainWorld(t))
			w.configure(bob, waypointConfig(kindsLineOf("offers", "wireguard", "converter")+labAllowed))
			w.configure(alice, clientOfAll("", addr(w, bob).String())+inTunnels())
			inClear := w.watchClear()
			w.start(bob)
			w.start(alice)
			w.converterReady("alice is admitted")
			arrives := w.transfer(server, "python3", "-c", sink)
			w.eventually("the server listens", func() error {
				return holds(w.run(server, "ss", "-Hltn", "sport", "=", ":5009") != "", "it does not")
			})
			w.transfer(alice, program, "run", "--", "python3", "-c", endlessly, w.addr4(server).String())
			arrives.goesOn()
			w.accepts(1)
			for _, signal := range []string{"KILL", "TERM"} {
				w.endAgent(alice, signal)
				w.run(alice, "nft", "flush", "ruleset")
				before := w.timeouts()
				w.eventually("the kernel has sent data again twice", func() error {
					now := w.timeouts()
					return holds(now > before+1, "%d timeouts in a row, and there were %d", now, before)
				})
				w.start(alice)
				arrives.goesOn()
				if rules := inClear(); len(rules) > 0 {
					t.Errorf("after %s, in clear there were %q", signal, rules)
				}
			}
			w.accepts(1)
		})
	}
}

// timeouts returns how often in a row alice's kernel has waited in vain for an acknowledgement of the converter's.
func (w *world) timeouts() (n int) {
	w.Helper()
	_, after, _ := strings.Cut(w.run(alice, "ss", "-Htin", "dport", "=", ":5124"), "backoff:")
	_, _ = fmt.Sscanf(after, "%d", &n)
	return n
}

// sink shows what arrives at a port that a converter dials only once.
const sink = `
import socket, sys
c, _ = socket.create_server(("0.0.0.0", 5009)).accept()
while b := c.recv(65536):
    sys.stdout.buffer.write(b)
    sys.stdout.buffer.flush()
`

// endlessly writes to sink.
const endlessly = `
import socket, sys
s = socket.create_connection((sys.argv[1], 5009))
while True:
    s.sendall(b"x" * 65536)
`

// A converter behind a home router, which lets UDP to the sessions' port through and nothing else, is called at its own end of the tunnel.
func TestConverterBehindNAT(t *testing.T) {
	w := newWorldWith(t, func(s *testbed.Spec) {
		s.Hosts[0].NAT = testbed.NAT{Inside: []string{bob}, Forwards: []testbed.PortForward{{Protocol: "udp", Port: 45672, To: bob}}}
	})
	w.sysctl(server, "net.mptcp.enabled", "0")
	standard(w)
	w.configure(bob, waypointConfig(kindsLineOf("offers", "wireguard", "converter")+"port_mapping = false\n"+labAllowed))
	w.configure(alice, clientOfAll("", w.addr4(router).String())+inTunnels())
	inClear := w.watchClear()
	x := w.fetchedInTunnel()
	w.restart(alice)
	x.goesOn()
	w.stayedInTunnel(x, inClear, "no detours to it, because it is behind a NAT")
}
