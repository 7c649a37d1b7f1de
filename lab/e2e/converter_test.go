package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

const proxyAddress = "127.0.0.1:1080"

// converting returns alice, bob with a converter, mallory as another waypoint, and a web server that speaks no MPTCP. The
// agents of all three run, and alice is admitted to the converter.
func converting(t *testing.T, use string) *world {
	t.Helper()
	w := plainWorld(t)
	w.convert(use, "")
	return w
}

// convert configures and starts what converting returns. more is added to alice's table client.converter.
func (w *world) convert(use, more string) { w.Helper(); w.convertAt(w.addr4(bob), use, more) }

// convertAt is convert with bob at one of its addresses, and mallory at one of the same family.
func (w *world) convertAt(at netip.Addr, use, more string) {
	w.Helper()
	w.convertWith(at, use, more, waypointConfig(labAllowed))
}

// convertWith is convertAt with a configuration of mallory's, written for bob.
func (w *world) convertWith(at netip.Addr, use, more, ofMallory string) {
	w.Helper()
	standard(w)
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective")) // mallory has reformed
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(ofMallory, bob, mallory))
	w.configure(bob, waypointConfig("offers = [\"mapped\", \"converter\"]\n"+labAllowed))
	detour := w.addr4(mallory)
	if at.Is6() {
		detour = w.addr6(mallory)
	}
	w.configure(alice, clientConfig("", at.String())+
		"[[client.waypoint]]\nname = \"mallory\"\naddresses = [\""+detour.String()+"\"]\n"+
		fmt.Sprintf("[client.converter]\nuse = %q\nproxy = %q\n", use, proxyAddress)+more)
	w.smallBuffers(alice, bob, server)
	w.start(mallory)
	w.start(bob)
	w.start(alice)
	w.convertersReady("alice is admitted to each converter", 1+strings.Count(ofMallory, `"converter"`))
}

// smallBuffers limits the buffers of TCP on hosts. By default, those of two relays hold megabytes, so that goesOn could be
// content with bytes that were under way before.
func (w *world) smallBuffers(hosts ...string) {
	w.Helper()
	for _, host := range hosts {
		w.run(host, "sysctl", "-qw", "net.ipv4.tcp_rmem=4096 131072 262144", "net.ipv4.tcp_wmem=4096 16384 262144")
	}
}

// converterReady waits until alice knows a converter and its relay listens.
func (w *world) converterReady(what string) { w.Helper(); w.convertersReady(what, 1) }

// convertersReady waits until alice knows n converters and its relay listens.
func (w *world) convertersReady(what string, n int) {
	w.Helper()
	w.eventually(what, func() error {
		s := w.mustStatus(alice)
		if s.Relay == nil {
			return fmt.Errorf("alice has no relay: %q", s.Problems)
		}
		return holds(len(s.Client.Converting.Converters) == n, "alice has the converters %+v", s.Client.Converting.Converters)
	})
}

// fetched begins a download through alice's proxy.
func (w *world) fetched(proxy string) *transfer { w.Helper(); return w.fetchedFrom(w.url(), proxy) }

func (w *world) fetchedFrom(url, proxy string) *transfer {
	w.Helper()
	return w.transfer(alice, "curl", "--silent", "--show-error", "--fail", "--no-buffer", "--proxytunnel", "--proxy", proxy+"://"+proxyAddress, url)
}

// throughConverter waits until alice's connection to bob's converter has a detour through mallory.
func (w *world) throughConverter() {
	w.Helper()
	w.eventually("a detour to the converter", func() error {
		for _, c := range w.mustStatus(alice).Client.Connections {
			toBob := c.Remote.Addr() == w.addr4(bob) || c.Remote.Addr() == w.addr6(bob)
			if toBob && len(c.Subflows) == 2 && c.Subflows[1].Waypoint == mallory && c.Subflows[1].State == "up" {
				return nil
			}
		}
		return fmt.Errorf("alice has %+v", w.mustStatus(alice).Client.Connections)
	})
}

// part returns one of the parts of a host's relay; the zero value if it has none.
func (w *world) part(host, name string) api.RelayPart {
	w.Helper()
	if r := w.mustStatus(host).Relay; r != nil {
		for _, p := range r.Parts {
			if p.Name == name {
				return p
			}
		}
	}
	return api.RelayPart{}
}

// accepts waits until bob's converter has accepted n connections and refused none.
func (w *world) accepts(n int64) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d connections were converted", n), func() error {
		p := w.part(bob, "converter")
		return holds(p.Accepted == n && p.Refused == 0, "the converter has %+v", p)
	})
}

// relayOf returns the process of a host's relay; 0: none runs.
func (w *world) relayOf(host string) (pid int) {
	w.Helper()
	err := w.host(host).Do(func() error {
		processes, err := filepath.Glob("/proc/[0-9]*/cmdline") // the host's own
		for _, path := range processes {
			if line, readErr := os.ReadFile(path); readErr == nil && strings.Contains(string(line), "\x00relay\x00--dir\x00") {
				fmt.Sscanf(path, "/proc/%d/", &pid)
			}
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return pid
}

// A server without MPTCP is reached over two paths, by programs that use the proxy. The connection survives the
// death of either path, of both agents, and of the waypoint.
func TestConverter(t *testing.T) {
	t.Parallel()
	for _, proxy := range []string{"socks5", "http"} {
		t.Run(proxy, func(t *testing.T) {
			w := converting(t, "always")
			x := w.fetched(proxy)
			w.throughConverter()
			x.goesOn()
			w.link(mallory, true)
			x.goesOn()
			w.link(mallory, false)
			for _, host := range []string{alice, bob} {
				w.endAgent(host, "KILL")
				x.goesOn()
				w.start(host)
			}
			w.converterReady("alice is admitted again")
			x.endsWell()
			w.accepts(1)
		})
	}
}

// Converted connections are in the log, as the member's.
func TestConverterIsLogged(t *testing.T) {
	w := converting(t, "always")
	x := w.fetched("socks5")
	x.goesOn()
	egress := w.seenByServer()
	if f := w.loggedFlow(egress); f.Member != alice || f.Kind != "converter" || f.Server.Addr() != w.addr4(server) {
		t.Errorf("the log has %+v", f)
	}
	x.endsWell()
}

// When the relay dies, its connections end, and it starts again. Without a converter, connections go directly.
func TestRelayDies(t *testing.T) {
	w := converting(t, "always")
	x := w.fetched("socks5")
	x.goesOn()
	w.run(bob, "kill", "-9", fmt.Sprint(w.relayOf(bob)))
	x.isReset()
	w.eventually("bob's relay is back", func() error { return holds(w.part(bob, "converter").Listen != "", "it is not") })
	w.run(bob, "nft", "table inet cut {\nchain input {\ntype filter hook input priority 0\ntcp dport 5124 drop\n}\n}")
	w.fetched("socks5").endsWell()
	w.run(bob, "nft", "delete table inet cut")
}

// A client that loses the resets of a killed relay on all paths gets them again from the converter's agent.
func TestRelayDiesAndResetsAreLost(t *testing.T) {
	w := converting(t, "always")
	x := w.fetched("socks5")
	x.goesOn()
	w.run(alice, "nft", "table inet lost {\nchain input {\ntype filter hook input priority 0\niif != lo tcp flags & rst == rst quota until 250 bytes drop\n}\n}")
	w.run(bob, "kill", "-9", fmt.Sprint(w.relayOf(bob)))
	x.isReset()
}

// Nothing is converted until the user wants it. In auto, the first connection shows that the server speaks no
// MPTCP, and later ones are converted. The proxy stays in any case: programs that are set to it have no other way.
func TestConverterAuto(t *testing.T) {
	w := converting(t, "auto")
	w.fetched("socks5").endsWell()
	w.fetched("socks5").endsWell()
	w.accepts(1) // not the first
	if out := w.dcol(alice, "convert", "never"); !strings.Contains(out, "not used") {
		t.Error(out)
	}
	converted := func(want bool) func() error {
		return func() error { // the relay learns of a change soon after the command
			before := w.part(bob, "converter").Accepted
			w.fetched("http").endsWell()
			after := w.part(bob, "converter").Accepted
			return holds(after > before == want, "the converter had %d connections, and then %d", before, after)
		}
	}
	w.eventually("the proxy leads directly", converted(false))
	w.dcol(alice, "convert", "always")
	w.converterReady("alice is admitted again")
	w.eventually("connections are converted again", converted(true))
	if text, err := w.read(alice, etc+"dcol.toml"); err != nil || !strings.Contains(string(text), `use = "always"`) {
		t.Errorf("%v\n%s", err, text)
	}
}

// One short connection of a program under dcol run is enough for auto to convert the next one, with no time between them.
func TestAutoLearnsAtOnce(t *testing.T) {
	w := converting(t, "auto")
	for range 2 {
		w.run(alice, program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--range", "0-999", "--output", "/dev/null", w.url())
	}
	w.accepts(1) // not the first
	w.dcol(alice, "convert", "never")
	w.eventually("handshakes are not watched", func() error {
		tables := w.run(alice, "nft", "list", "tables")
		return holds(!strings.Contains(tables, "dcol_handshakes"), "alice has %s", tables)
	})
}

// dnsAnswer sends a DNS answer to a host: example.org has an address for five minutes.
const dnsAnswer = `
import socket, struct, sys
m = struct.pack(">6H", 1, 0x8180, 1, 1, 0, 0) + b"\x07example\x03org\x00" + struct.pack(">2H", 1, 1)
m += b"\xc0\x0c" + struct.pack(">2HIH", 1, 1, 300, 4) + socket.inet_aton(sys.argv[2])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 53))
s.sendto(m, (sys.argv[1], 5353))
`

// Excluded domains take effect by a reload, and end by one.
func TestExcludedDomainsAreReloaded(t *testing.T) {
	w := plainWorld(t)
	w.convert("always", "")
	fetch := func() {
		t.Helper()
		w.run(alice, program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--range", "0-999", "--output", "/dev/null", w.url())
	}
	reload := func(names string) {
		t.Helper()
		w.dcol(alice, "config", "set", "client.converter.exclude_domains", names)
		if said := w.dcol(alice, "reload"); !strings.HasPrefix(said, "in effect now:\n  client.converter.exclude_domains:") {
			t.Errorf("dcol reload says %q", said)
		}
	}
	reload(`["example.org"]`)
	w.eventually("the server is excluded", func() error {
		w.run(server, "python3", "-c", dnsAnswer, w.addr4(alice).String(), w.addr4(server).String())
		list := w.mustStatus(alice).Client.Converting.Excluded
		return holds(len(list) == 1 && list[0].Name == "example.org" && list[0].Addr == w.addr4(server), "excluded are %+v", list)
	})
	fetch()
	w.accepts(0)
	reload("[]")
	w.eventually("the server is not excluded any more", func() error {
		list := w.mustStatus(alice).Client.Converting.Excluded
		return holds(len(list) == 0, "excluded are %+v", list)
	})
	fetch()
	w.accepts(1)
}

// named waits until alice's status shows her converted connection under its server, and returns that.
func (w *world) named() (at netip.AddrPort) {
	w.Helper()
	at = netip.AddrPortFrom(w.addr4(server), 80)
	w.eventually("the status names the server and the converter", func() error {
		list := w.mustStatus(alice).Client.Connections // of a program that does not wait, also the one to the relay
		named := slices.ContainsFunc(list, func(c api.Connection) bool { return c.Server == at && c.Converter == bob })
		return holds(named, "alice has %+v", list)
	})
	return at
}

// A converted connection is shown under the server that the program means.
func TestConvertedConnectionsAreNamed(t *testing.T) {
	w := converting(t, "always")
	x := w.fetched("socks5")
	x.goesOn()
	at := w.named()
	text := fmt.Sprintf("to %v through the converter of bob (%v:5124), for ", at, w.addr4(bob))
	for _, argv := range [][]string{{"status", "-d"}, {"why", at.String()}, {"why", at.Addr().String()}, {"why", w.mustStatus(alice).Client.Connections[0].Token}} {
		if out := w.dcol(alice, argv...); !strings.Contains(out, text) || argv[0] == "why" && !strings.Contains(out, "A new connection to "+at.String()) {
			t.Errorf("%q prints\n%s", argv, out)
		}
	}
	x.endsWell()
	w.eventually("the ended connection is named", func() error {
		out := w.dcol(alice, "why", at.String())
		return holds(strings.Contains(out, fmt.Sprintf("to %v through the converter of bob (%v:5124), ended ", at, w.addr4(bob))), "it prints\n%s", out)
	})
}

// dcol down ends the relay and all that it did.
func TestConverterDown(t *testing.T) {
	w := converting(t, "always")
	for _, host := range []string{alice, bob} {
		w.dcol(host, "down")
		if pid := w.relayOf(host); pid != 0 {
			t.Errorf("the relay of %s runs on as process %d", host, pid)
		}
	}
	w.run(bob, "sh", "-c", "! nft list tables | grep dcol")
}

// Under dcol run, an unmodified program reaches the server through the converter: a blocking one on a socket of its
// own, on which no process of ours is, and a non-blocking one through the relay.
func TestConverterUnderRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fetch   func(w *world) *transfer
		relayed bool
	}{
		"non-blocking": {func(w *world) *transfer { return w.curl(w.url()) }, true},
		"blocking": {func(w *world) *transfer {
			return w.transfer(alice, program, "run", "--", "python3", "-c", blockingFetch, w.addr4(server).String())
		}, false},
		"blocking, of another user": {func(w *world) *transfer {
			return w.transfer(alice, "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
				program, "run", "--", "python3", "-c", blockingFetch, w.addr4(server).String())
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := converting(t, "always")
			x := c.fetch(w)
			w.throughConverter()
			x.goesOn()
			w.named()
			for _, host := range []string{alice, bob} {
				w.endAgent(host, "KILL")
				x.goesOn()
				w.start(host)
			}
			w.named()
			if !c.relayed {
				killed := w.relayOf(alice)
				w.run(alice, "kill", "-9", fmt.Sprint(killed))
				w.eventually("another relay runs", func() error {
					now := w.relayOf(alice)
					return holds(now != 0 && now != killed, "it is %d", now)
				})
				w.named()
			}
			x.endsWell()
			w.accepts(1)
			w.eventually("alice's relay reports what it has carried", func() error {
				n := w.part(alice, "programs, IPv4").Accepted
				return holds((n == 1) == c.relayed, "it has accepted %d connections", n)
			})
		})
	}
}

// The server and the converter may have IPv6 addresses, whichever way programs come to the relay. TestCapture and TestGateway
// show the others.
func TestConverterIPv6(t *testing.T) {
	w := plainWorld(t)
	w.convertAt(w.addr6(bob), "always", "")
	for i, fetch := range []func() *transfer{
		func() *transfer { return w.fetchedFrom(w.url6(80), "socks5") },
		func() *transfer { return w.fetchedFrom(w.url6(80), "http") },
		func() *transfer { return w.curl(w.url6(80)) },
		func() *transfer {
			return w.transfer(alice, program, "run", "--", "python3", "-c", blockingFetch, w.addr6(server).String())
		},
	} {
		x := fetch()
		x.goesOn()
		x.endsWell()
		w.accepts(int64(i + 1))
	}
}

// A detour to the converter carries the connection alone when the direct subflow has been reset, over IPv6, too.
func TestConverterIPv6Detour(t *testing.T) {
	w := plainWorld(t)
	w.convertAt(w.addr6(bob), "always", "")
	x := w.fetchedFrom(w.url6(80), "socks5")
	w.throughConverter()
	x.goesOn()
	w.run(router, "nft", fmt.Sprintf(`table inet cut {
		chain forward { type filter hook forward priority 0;
			ip6 saddr %[1]v ip6 daddr %[2]v tcp dport 5124 reject with tcp reset
			ip6 saddr %[2]v ip6 daddr %[1]v tcp sport 5124 reject with tcp reset
		}
	}`, w.addr6(alice), w.addr6(bob)))
	x.goesOn()
	w.eventually("the direct subflow has ended", func() error {
		direct := w.run(alice, "ss", "-Htn", "state", "established", "dst", fmt.Sprintf("[%v]:5124", w.addr6(bob)))
		return holds(direct == "", "alice has\n%s", direct)
	})
	x.goesOn()
	w.run(router, "nft", "delete table inet cut")
	x.endsWell()
	w.accepts(1)
}

// blockingFetch downloads a file as simple programs do.
const blockingFetch = `
import socket, sys
s = socket.create_connection((sys.argv[1], 80))
assert s.getpeername()[:2] == (sys.argv[1], 80), s.getpeername()
s.sendall(b"GET /file HTTP/1.0\r\n\r\n")
f = s.makefile("rb")
while f.readline() not in (b"\r\n", b""):
    pass
while True:
    b = f.read1(65536)
    if not b:
        break
    sys.stdout.buffer.write(b)
    sys.stdout.buffer.flush()
`

// Between client and converter, WireGuard can be chosen as the kind of detours. The connection goes on when the path
// that is not in a tunnel has ended.
func TestConverterThroughWireGuard(t *testing.T) {
	w := standard(plainWorld(t))
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective"))
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(waypointConfig(kindsLineOf("offers", "wireguard")+labAllowed), bob, mallory))
	w.configure(bob, waypointConfig(kindsLineOf("offers", "mapped", "converter")+"converter_port = 6182\n"+labAllowed))
	w.configure(alice, clientOfAll(kindsLine("wireguard"), w.addr4(bob).String())+
		"[[client.waypoint]]\nname = \"mallory\"\naddresses = [\""+w.addr4(mallory).String()+"\"]\n"+
		fmt.Sprintf("[client.converter]\nuse = \"always\"\nproxy = %q\n", proxyAddress))
	w.smallBuffers(alice, bob, server)
	for _, host := range []string{mallory, bob, alice} {
		w.start(host)
	}
	w.converterReady("alice is admitted")
	x := w.fetched("socks5")
	w.eventually("a subflow to the converter in mallory's tunnel", func() error {
		for _, c := range w.mustStatus(alice).Client.Connections {
			if c.Remote.Addr() == w.addr4(bob) && len(c.Subflows) == 2 && c.Subflows[1].Waypoint == mallory &&
				c.Subflows[1].Kind == "wireguard" && c.Subflows[1].State == "up" {
				return nil
			}
		}
		return fmt.Errorf("alice has %+v", w.mustStatus(alice).Client.Connections)
	})
	x.goesOn()
	w.run(router, "nft", fmt.Sprintf("table inet cut {\nchain forward {\ntype filter hook forward priority 0\nip saddr %[1]v ip daddr %[2]v tcp dport 6182 drop\nip saddr %[2]v ip daddr %[1]v tcp sport 6182 drop\n}\n}",
		w.addr4(alice), w.addr4(bob)))
	x.goesOn()
	w.run(router, "nft", "delete table inet cut")
	x.endsWell()
	w.accepts(1)
}

// kindsLineOf is kindsLine for another key.
func kindsLineOf(key string, kinds ...string) string {
	return strings.Replace(kindsLine(kinds...), "kinds", key, 1)
}

// addressList is a program that waits in connect(). It tries the server's IPv6 address, and if that refuses, its IPv4 address.
const addressList = `
import socket, sys
for family, host in ((socket.AF_INET6, sys.argv[2]), (socket.AF_INET, sys.argv[1])):
    s = socket.socket(family)
    try: s.connect((host, 85))
    except ConnectionRefusedError: continue
    s.sendall(b"GET /file HTTP/1.0\\r\\nRange: bytes=0-9\\r\\n\\r\\n")
    print(family.name, s.recv(8).decode())
    break
`

// The server serves a port over IPv4 only, and the converter is known by IPv4 only. A program that waits is refused over
// IPv6, as without dcol, and goes on with IPv4.
func TestConverterOfOtherFamily(t *testing.T) {
	w := converting(t, "always")
	for range 2 {
		r := w.try(alice, program, "run", "--", "python3", "-c", addressList, w.addr4(server).String(), w.addr6(server).String())
		if want := "AF_INET HTTP/1.1\n"; r.stdout != want {
			t.Errorf("%q, want %q: %s", r.stdout, want, r.stderr)
		}
	}
	w.accepts(2)
}

// A connection is converted and has its detour also if one of its first packets to or from the converter is lost.
func TestConverterLosesHandshake(t *testing.T) {
	for name, lost := range map[string]string{
		"the SYN":       "chain output {\ntype filter hook output priority 0\ntcp dport 5124 tcp flags == syn limit rate 1/hour burst 1 packets counter drop\n}",
		"the SYN+ACK":   "chain input {\ntype filter hook input priority 0\ntcp sport 5124 tcp flags & (syn|ack) == syn|ack limit rate 1/hour burst 1 packets counter drop\n}",
		"the message":   "chain output {\ntype filter hook output priority 0\ntcp dport 5124 tcp flags & psh == psh limit rate 1/hour burst 1 packets counter drop\n}",
		"the answer":    "chain input {\ntype filter hook input priority 0\ntcp sport 5124 tcp flags & psh == psh limit rate 1/hour burst 1 packets counter drop\n}",
		"the third ACK": "chain output {\ntype filter hook output priority 0\ntcp dport 5124 tcp flags & (syn|ack) == ack limit rate 1/hour burst 1 packets counter drop\n}",
	} {
		t.Run(name, func(t *testing.T) {
			w := converting(t, "always")
			w.run(alice, "nft", "table inet lost {\n"+lost+"\n}")
			x := w.fetched("socks5")
			w.throughConverter()
			x.goesOn()
			if rules := w.run(alice, "nft", "list", "table", "inet", "lost"); !strings.Contains(rules, "counter packets 1 ") {
				t.Errorf("nothing was lost: %s", rules)
			}
		})
	}
}
