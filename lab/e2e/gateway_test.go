package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/lab/testbed"
)

// phone is a host of alice's LAN. It has no dcol agent.
const phone = "phone"

// withLAN is converting with alice as the gateway of a LAN. plain is a server that speaks no MPTCP.
func withLAN(t *testing.T, use string, plain bool) *world {
	t.Helper()
	return withLANOf(t, use, plain, (*world).addr4, "")
}

// withLANOf is withLAN with bob at one of its addresses, and more in alice's table client.converter.
func withLANOf(t *testing.T, use string, plain bool, at func(*world, string) netip.Addr, more string) *world {
	t.Helper()
	w := newLAN(t)
	if plain {
		w.sysctl(server, "net.mptcp.enabled", "0")
	}
	w.smallBuffers(phone)
	w.convertAt(at(w, bob), use, w.gatewayTable()+more)
	w.gatewayReady()
	return w
}

// newLAN is newWorld with a phone behind alice.
func newLAN(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, func(s *testbed.Spec) {
		for i := range s.Hosts {
			if s.Hosts[i].Name == alice {
				s.Hosts[i].Forward = true
			}
		}
		s.Hosts = append(s.Hosts, testbed.HostSpec{Name: phone})
		s.Links = append(s.Links, testbed.LinkSpec{Name: phone, A: phone, B: alice})
	})
}

// gatewayTable returns lines of alice's table client.converter.
func (w *world) gatewayTable() string {
	return fmt.Sprintf("gateway = [%q]\nexclude_ports = [81]\n", w.host(alice).Interface(phone))
}

// gatewayReady waits until alice's kernel leads connections to the relay.
func (w *world) gatewayReady() {
	w.Helper()
	w.eventually("alice's gateway works", func() error {
		rules := w.try(alice, "nft", "list", "chain", "inet", "dcol_gateway", "divert").stdout
		s := w.mustStatus(alice)
		at := w.part(alice, relay.PartGateway4).Listen
		return holds(at != "" && strings.Contains(rules, at) && strings.Contains(rules, "ip6") && len(s.Problems) == 0, "at %q, rules %s, problems %q", at, rules, s.Problems)
	})
}

// byPhone begins a download by the phone, whose sockets are TCP.
func (w *world) byPhone(url string) *transfer {
	w.Helper()
	return w.transfer(phone, "curl", "--silent", "--show-error", "--fail", "--no-buffer", url)
}

// taken returns how many connections of the LAN alice's relay has taken since it started.
func (w *world) taken() int64 {
	w.Helper()
	return w.part(alice, relay.PartGateway4).Accepted + w.part(alice, relay.PartGateway6).Accepted
}

// takes checks that alice's relay has taken n connections.
func (w *world) takes(n int64) {
	w.Helper()
	w.eventually(fmt.Sprintf("alice has taken %d connections", n), func() error {
		now := w.taken()
		return holds(now == n, "it has taken %d", now)
	})
}

func (w *world) url6(port int) string {
	return fmt.Sprintf("http://[%v]:%d/file", w.addr6(server), port)
}

// isReset waits until a download by curl ends, and checks that a reset ended it, not an orderly end of the stream. The reset
// takes milliseconds. A busy machine may need longer, but no connection may wait for the kernel's close_timeout.
func (x *transfer) isReset() {
	x.w.Helper()
	const closeTimeout, received = 60 * time.Second, 56 // curl: failure in receiving network data
	x.once.Do(func() { close(x.hurry) })
	began := time.Now()
	select {
	case <-x.ended:
		x.w.Logf("it ended after %v", time.Since(began).Round(time.Millisecond))
	case <-time.After(closeTimeout / 2):
		x.w.Fatal("the download does not notice that its connection was cut")
	}
	var exit *exec.ExitError
	if !errors.As(x.err, &exit) || exit.ExitCode() != received {
		x.w.Errorf("the download was not reset: %v: %s", x.err, x.stderr.String())
	}
}

// nothingLeft checks that no rule or route of the gateway is there.
func (w *world) nothingLeft() {
	w.Helper()
	for _, argv := range [][]string{{"nft", "list", "tables"}, {"ip", "rule"}, {"ip", "-6", "rule"}, {"ip", "route", "show", "table", "all"}} {
		if out := w.run(alice, argv...); strings.Contains(out, "dcol_gateway") || strings.Contains(out, "199:") || strings.Contains(out, "local default") {
			w.Errorf("left behind:\n%s", out)
		}
	}
}

// A phone behind a gateway reaches a server without MPTCP over two paths. The connection survives the death of a path
// and of the gateway's agent, without which new connections are converted too. Excluded ports are not.
func TestGateway(t *testing.T) {
	w := withLAN(t, "always", true)
	x := w.byPhone(w.url())
	w.throughConverter()
	x.goesOn()
	w.link(mallory, true)
	x.goesOn()
	w.link(mallory, false)
	w.endAgent(alice, "KILL")
	x.goesOn()
	w.byPhone(w.url6(80)).endsWell()
	w.accepts(2)
	w.start(alice)
	w.converterReady("alice is admitted again")
	w.gatewayReady()
	w.byPhone(w.url()).endsWell()
	x.endsWell()
	w.accepts(3)
	w.byPhone(strings.Replace(w.url(), "/file", ":81/file", 1)).endsWell()
	w.accepts(3)
	w.takes(3)
}

// What the rules exclude follows a reload. Connections continue.
func TestGatewayReloads(t *testing.T) {
	w := withLAN(t, "always", true)
	x := w.byPhone(w.url())
	x.goesOn()
	reload := func(key, value string) {
		t.Helper()
		w.dcol(alice, "config", "set", key, value)
		if said := w.dcol(alice, "reload"); !strings.HasPrefix(said, "in effect now:\n  "+key+":") {
			t.Errorf("dcol reload says %q", said)
		}
	}
	for _, key := range []string{"client.exclude", "client.converter.exclude"} {
		reload(key, fmt.Sprintf("[\"%v/32\"]", w.addr4(server)))
		w.byPhone(w.url()).endsWell()
		w.takes(1)
		reload(key, "[]")
	}
	reload("client.converter.exclude_ports", "[80]")
	w.byPhone(w.url()).endsWell()
	w.byPhone(w.url6(80)).endsWell()
	w.byPhone(strings.Replace(w.url(), "/file", ":81/file", 1)).endsWell()
	w.takes(2)
	x.endsWell()
	w.accepts(2)
}

// When the relay and the agent are dead, the LAN goes on with plain TCP.
func TestGatewayRelayDies(t *testing.T) {
	w := withLAN(t, "always", true)
	x := w.byPhone(w.url())
	x.goesOn()
	w.endAgent(alice, "KILL")
	w.run(alice, "kill", "-9", fmt.Sprint(w.relayOf(alice)))
	x.isReset()
	w.eventually("the relay's listeners are closed", func() error { // until then, new connections are reset, too
		listeners := w.run(alice, "ss", "-Htln")
		return holds(listeners == "", "alice has\n%s", listeners)
	})
	w.byPhone(w.url()).endsWell()
	w.byPhone(w.url6(80)).endsWell()
	w.accepts(1)
	w.start(alice)
	w.converterReady("alice is admitted again")
	w.gatewayReady()
	w.byPhone(w.url()).endsWell()
	w.accepts(2)
}

// If the relay is stopped, the LAN's new connections wait for it at first, and then go directly. The agent ends the relay, and
// the next one has its addresses.
func TestGatewayRelayStops(t *testing.T) {
	w := withLAN(t, "always", true)
	w.byPhone(w.url()).endsWell()
	w.accepts(1)
	stopped := w.relayOf(alice)
	w.run(alice, "kill", "-STOP", fmt.Sprint(stopped))
	w.eventually("the phone reaches the server", func() error {
		r := w.try(phone, "curl", "--silent", "--fail", "--head", "--max-time", "1", w.url())
		return holds(r.code == 0, "curl: exit code %d", r.code)
	})
	w.eventually("another relay runs", func() error {
		now := w.relayOf(alice)
		return holds(now != 0 && now != stopped, "it is still %d", now)
	})
	w.gatewayReady()
	w.byPhone(w.url()).endsWell()
	w.takes(1)
}

// If the agent has been killed, dcol convert never reaches the relay that goes on. If that is stopped, the command says so.
func TestConvertNeverWithoutAgent(t *testing.T) {
	w := withLAN(t, "always", true)
	w.byPhone(w.url()).endsWell()
	w.accepts(1)
	w.endAgent(alice, "KILL")
	w.dcol(alice, "convert", "never")
	w.byPhone(w.url()).endsWell()
	w.transfer(alice, program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer", w.url()).endsWell()
	w.accepts(1)
	w.run(alice, "kill", "-STOP", fmt.Sprint(w.relayOf(alice)))
	w.fails(alice, []string{"convert", "never"}, "the configuration is changed", "dcol down")
	w.dcol(alice, "down")
	if pid := w.relayOf(alice); pid != 0 {
		t.Errorf("after dcol down, relay %d is there", pid)
	}
}

// Rules that a firewall flushes come back. dcol convert never and dcol down remove all.
func TestGatewayEnds(t *testing.T) {
	w := withLAN(t, "always", true)
	w.run(alice, "nft", "flush", "ruleset")
	w.gatewayReady()
	x := w.byPhone(w.url())
	x.goesOn()
	w.accepts(1)
	w.dcol(alice, "convert", "never")
	w.nothingLeft()
	x.isReset()
	w.byPhone(w.url()).endsWell()
	w.dcol(alice, "convert", "always")
	w.converterReady("alice is admitted again")
	w.gatewayReady()
	w.byPhone(w.url()).endsWell()
	w.accepts(2)
	w.dcol(alice, "down")
	w.nothingLeft()
	w.byPhone(w.url()).endsWell()
	w.accepts(2)
}

// In auto, an MPTCP phone passes by to a server that speaks MPTCP, and teaches this. Then a TCP phone's connection is
// taken: the gateway's own has detours. Of a server without MPTCP, the first connection teaches that.
func TestGatewayAuto(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"MPTCP": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			w := withLAN(t, "auto", plain)
			w.byPhone(w.url()).endsWell()
			w.takes(0)
			byMPTCP := func() *transfer {
				return w.transfer(phone, program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer", w.url())
			}
			byMPTCP().endsWell()
			w.takes(0)
			if plain {
				byMPTCP().endsWell() // the relay makes sure
				byMPTCP().endsWell()
				w.byPhone(w.url()).endsWell()
				w.takes(3)
				w.accepts(2)
				return
			}
			byMPTCP().endsWell()
			w.takes(0)
			x := w.byPhone(w.url())
			w.eventually("the gateway's connection has detours", func() error {
				for _, c := range w.mustStatus(alice).Client.Connections {
					if c.Remote.Addr() == w.addr4(server) && len(c.Subflows) > 1 && c.Subflows[1].State == "up" {
						return nil
					}
				}
				return fmt.Errorf("alice has %+v", w.mustStatus(alice).Client.Connections)
			})
			x.endsWell()
			w.takes(1)
			w.accepts(0)
		})
	}
}

// A server sees the phone's own IPv6 address on the direct path of the gateway's connection, and a waypoint's on its detour.
// The connection survives the death of either path, and of the gateway's agent.
func TestGatewayKeepsIPv6(t *testing.T) {
	w := withLANOf(t, "auto", false, (*world).addr6, "keep_ipv6 = true\n")
	url := w.url6(80)
	w.transfer(phone, program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer", url).endsWell() // teaches
	x := w.byPhone(url)
	var waypoint string
	w.eventually("a direct path from the phone's address, and a detour", func() error {
		for _, c := range w.mustStatus(alice).Client.Connections {
			if c.Remote.Addr() == w.addr6(server) && c.Local.Addr() == w.addr6(phone) && len(c.Subflows) == 2 && c.Subflows[1].State == "up" {
				waypoint = c.Subflows[1].Waypoint
				return nil
			}
		}
		return fmt.Errorf("alice has %+v", w.mustStatus(alice).Client.Connections)
	})
	seen := w.run(server, "ss", "--tcp", "--numeric", "--no-header", "state", "established", "sport", "=", ":80")
	for _, host := range []string{phone, waypoint} {
		if !strings.Contains(seen, w.addr6(host).String()) {
			w.Errorf("the server does not see %s at %v:\n%s", host, w.addr6(host), seen)
		}
	}
	x.goesOn()
	w.link(waypoint, true)
	x.goesOn()
	w.link(waypoint, false)
	w.endAgent(alice, "KILL")
	x.goesOn()
	w.start(alice)
	w.gatewayReady()
	w.run(router, "nft", fmt.Sprintf("table inet cut {\nchain forward {\ntype filter hook forward priority 0\nip6 saddr %v drop\n}\n}", w.addr6(phone)))
	x.goesOn()
	w.run(router, "nft", "delete table inet cut")
	x.endsWell()
	w.takes(1)
}

// A host is a gateway and a waypoint at once. Connections of the LAN and of another member pass, also while its agent is
// dead, and its rules for one are none of the other's business.
func TestGatewayAndWaypoint(t *testing.T) {
	w := standard(newLAN(t))
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective")) // mallory has reformed
	w.identify("collective", mallory)
	w.configure(bob, waypointConfig("offers = [\"mapped\", \"converter\"]\n"+labAllowed))
	w.configure(alice, strings.Replace(clientConfig("", w.addr4(bob).String()), `["client"]`, `["client", "waypoint"]`, 1)+
		"[client.converter]\nuse = \"always\"\n"+w.gatewayTable()+"[waypoint]\n"+labAllowed)
	w.configure(mallory, strings.NewReplacer(alice, mallory, bob, alice).Replace(clientConfig("", w.addr4(alice).String())))
	for _, host := range []string{bob, alice, mallory} {
		w.start(host)
	}
	w.converterReady("alice is admitted to the converter")
	w.gatewayReady()
	ours := w.byPhone(w.url())
	theirs := w.transfer(mallory, program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer", w.url())
	w.eventually("mallory's connection has a detour through alice", func() error {
		for _, c := range w.mustStatus(mallory).Client.Connections {
			if len(c.Subflows) == 2 && c.Subflows[1].Waypoint == alice && c.Subflows[1].State == "up" {
				return nil
			}
		}
		return fmt.Errorf("mallory has %+v", w.mustStatus(mallory).Client.Connections)
	})
	w.run(router, "nft", fmt.Sprintf("table inet cut {\nchain forward {\ntype filter hook forward priority 0\nip saddr %[1]v ip daddr %[2]v drop\nip saddr %[2]v ip daddr %[1]v drop\n}\n}",
		w.addr4(mallory), w.addr4(server)))
	both := func() {
		t.Helper()
		theirs.goesOn()
		ours.goesOn()
	}
	both()
	w.endAgent(alice, "KILL")
	both()
	w.start(alice)
	w.converterReady("alice is admitted again")
	w.gatewayReady()
	both()
	w.run(alice, "nft", "delete table inet dcol_gateway") // theirs does not notice
	theirs.goesOn()
	w.gatewayReady()
	w.byPhone(w.url6(80)).endsWell()
	w.run(router, "nft", "delete table inet cut")
	theirs.endsWell()
}

// The gateway of a home is its owner's own waypoint and converter while she is away, also to a server without MPTCP, and
// the gateway of those at home, who use another converter. Its agent's death ends neither.
func TestGatewayIsHome(t *testing.T) {
	const away = mallory
	w := standard(newLAN(t))
	w.sysctl(server, "net.mptcp.enabled", "0")
	w.dcol(server, "ca", "issue", away, "--dir", w.caDir("collective"))
	w.identify("collective", away)
	w.configure(bob, waypointConfig("offers = [\"mapped\", \"converter\"]\n"+labAllowed))
	w.configure(alice, strings.Replace(clientConfig("", w.addr4(bob).String()), `["client"]`, `["client", "waypoint"]`, 1)+
		"[client.converter]\nuse = \"always\"\n"+w.gatewayTable()+"[waypoint]\noffers = [\"mapped\", \"converter\"]\n"+labAllowed)
	w.configure(away, strings.NewReplacer(alice, away, bob, alice).Replace(clientConfig("", w.addr4(alice).String()))+
		"[client.converter]\nuse = \"always\"\n")
	for _, host := range []string{bob, alice, away} {
		w.start(host)
	}
	w.converterReady("home is admitted to bob's converter")
	w.gatewayReady()
	w.eventually("she is admitted to the converter at home", func() error {
		s := w.mustStatus(away)
		var names []string
		for _, c := range s.Client.Converting.Converters {
			names = append(names, c.Name)
		}
		return holds(s.Relay != nil && slices.Contains(names, alice), "she has the converters %q, problems %q", names, s.Problems)
	})
	hers := w.transfer(away, program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer", w.url())
	atHome := w.byPhone(w.url())
	both := func() {
		t.Helper()
		hers.goesOn()
		atHome.goesOn()
	}
	both()
	w.takes(1)
	w.accepts(1) // of those at home
	if p := w.part(alice, "converter"); p.Accepted != 1 || p.Refused != 0 {
		t.Errorf("the converter at home has %+v", p)
	}
	w.endAgent(alice, "KILL")
	both()
	w.start(alice)
	w.converterReady("home is admitted again")
	w.gatewayReady()
	hers.endsWell()
	atHome.endsWell()
}
