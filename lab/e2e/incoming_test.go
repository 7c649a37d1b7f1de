package e2e

import (
	"bufio"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

const (
	incomingPort = 880 // the unit lets the relay have ports below 1024
	incomingPart = "incoming at 880 for alice"
)

// incomingTable has bob's converter take connections at a port for a service of the host.
func incomingTable(port int, to string) string {
	return fmt.Sprintf("[[client.converter.incoming]]\nconverter = %q\nport = %d\nto = %q\n", bob, port, to)
}

// listening returns a world in which bob's converter takes connections at a port for a web server of alice's, which is on
// her loopback interface only. Bob has detours through mallory. The server's host speaks no MPTCP and is the one who calls.
func listening(t *testing.T) *world {
	t.Helper()
	w := callable(t, "20s")
	for _, host := range []string{mallory, bob, alice} {
		w.start(host)
	}
	w.isTaken()
	return w
}

// callable returns the world of listening, with no agent running yet. lease is how long alice has the port at a time.
func callable(t *testing.T, lease string) *world {
	t.Helper()
	w := standard(plainWorld(t))
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective")) // mallory has reformed
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(waypointConfig(labAllowed), bob, mallory))
	w.configure(bob, strings.Replace(waypointConfig("offers = [\"mapped\", \"converter\"]\nconverter_incoming = [\"880-881\"]\nmapping_lifetime = \""+lease+"\"\n"+labAllowed+
		"[client]\nexclude = []\nselection = \"oldest\"\n"+kindsLine("mapped")+
		fmt.Sprintf("[[client.waypoint]]\nname = %q\naddresses = [%q]\n", mallory, w.addr4(mallory))),
		`roles = ["waypoint"]`, `roles = ["client", "waypoint"]`, 1))
	w.configure(alice, clientConfig("", w.addr4(bob).String())+incomingTable(incomingPort, "127.0.0.1:80"))
	web := w.host(alice).Command(w.life(), "python3", "-m", "http.server", "80", "--bind", "127.0.0.1", "--directory", webRoot)
	if err := web.Start(); err != nil {
		t.Fatal(err)
	}
	go web.Wait() // it ends with its host
	return w
}

// isTaken waits until bob takes connections for alice.
func (w *world) isTaken() {
	w.Helper()
	w.incoming(alice, true, "")
	for _, relay := range []struct{ host, part string }{{bob, incomingPart}, {alice, "incoming"}} {
		w.eventually(relay.host+"'s relay listens", func() error {
			p := w.part(relay.host, relay.part)
			return holds(p.Listen != "" && p.Problem == "", "it has %+v", p)
		})
	}
}

// incoming waits until a host knows whether bob takes connections for its service, and why not.
func (w *world) incoming(host string, granted bool, why string) {
	w.Helper()
	w.eventually(fmt.Sprintf("bob takes connections for %s: %v", host, granted), func() error {
		list := w.mustStatus(host).Client.Converting.Incoming
		return holds(len(list) == 1 && list[0].Granted == granted && strings.Contains(list[0].Why, why), "%s says %+v", host, list)
	})
}

// called begins a download by a host without MPTCP at bob's address.
func (w *world) called(at netip.Addr) *transfer {
	w.Helper()
	return w.transfer(server, "curl", "--silent", "--show-error", "--fail", "--no-buffer", "http://"+port(at, incomingPort)+"/file")
}

// isNotTaken waits until nobody listens at the port at bob's.
func (w *world) isNotTaken() {
	w.Helper()
	w.eventually("bob takes no connections for alice", func() error {
		r := w.try(server, "curl", "--silent", "--show-error", "--max-time", "5", "http://"+port(w.addr4(bob), incomingPort)+"/file", "--output", "/dev/null")
		if r.code != 7 { // refused
			return fmt.Errorf("%v", r)
		}
		p := w.part(bob, incomingPart)
		return holds(p == api.RelayPart{}, "bob's relay has %+v", p)
	})
}

// bringsOverTwoPaths waits until bob's connection to alice's relay has a detour through mallory.
func (w *world) bringsOverTwoPaths() {
	w.Helper()
	w.eventually("a detour to alice", func() error {
		list := w.mustStatus(bob).Client.Connections
		for _, c := range list {
			if c.Remote == netip.AddrPortFrom(w.addr4(alice), 5125) && len(c.Subflows) == 2 && c.Subflows[1].Waypoint == mallory && c.Subflows[1].State == "up" {
				return nil
			}
		}
		return fmt.Errorf("bob has %+v", list)
	})
}

// Whoever speaks plain TCP reaches a member's service at a converter, which brings the connection over two paths. It goes on
// without either of these and without the agents. Another member does not get the port. It is in the log as the member's.
func TestIncoming(t *testing.T) {
	w := listening(t)
	x := w.called(w.addr4(bob))
	w.bringsOverTwoPaths()
	x.goesOn()
	direct := fmt.Sprintf("ip saddr %[1]v ip daddr %[2]v tcp dport 5125 drop\nip saddr %[2]v ip daddr %[1]v tcp sport 5125 drop", w.addr4(bob), w.addr4(alice))
	w.run(router, "nft", "table inet cut {\nchain forward {\ntype filter hook forward priority 0\n"+direct+"\n}\n}")
	x.goesOn()
	w.run(router, "nft", "delete table inet cut")
	x.goesOn()
	w.link(mallory, true)
	x.goesOn()
	w.link(mallory, false)
	for _, host := range []string{alice, bob} {
		w.endAgent(host, "KILL")
		x.goesOn()
		w.called(w.addr4(bob)).goesOn()
		w.start(host)
		w.isTaken()
	}
	x.endsWell()
	if out := w.dcol(alice, "status"); !strings.Contains(out, "Services of this host at converters") {
		t.Errorf("alice's status does not have her services:\n%s", out)
	}

	w.configure(mallory, strings.Replace(strings.ReplaceAll(waypointConfig(labAllowed), bob, mallory), `roles = ["waypoint"]`, `roles = ["client", "waypoint"]`, 1)+
		"[client]\nexclude = []\n"+fmt.Sprintf("[[client.waypoint]]\nname = %q\naddresses = [%q]\n", bob, w.addr4(bob))+incomingTable(incomingPort, "127.0.0.1:80"))
	w.restart(mallory)
	w.incoming(mallory, false, "port-taken")
}

// The member, the converter and the one who calls may have IPv6 addresses.
func TestIncomingIPv6(t *testing.T) {
	w := listening(t)
	w.configure(alice, clientConfig("", w.addr6(bob).String())+incomingTable(incomingPort, "127.0.0.1:80"))
	w.restart(alice)
	w.isTaken()
	for _, at := range []netip.Addr{w.addr6(bob), w.addr4(bob)} {
		x := w.called(at)
		x.goesOn()
		x.endsWell()
	}
	w.eventually("alice's relay reports both", func() error {
		p := w.part(alice, "incoming")
		return holds(p.Accepted == 2 && p.Refused == 0, "it has %+v", p)
	})
}

// A member that is expelled has its port no longer, and its connections end.
func TestIncomingExpelled(t *testing.T) {
	w := listening(t)
	x := w.called(w.addr4(bob))
	x.goesOn()
	w.dcol(server, "ca", "revoke", alice, "--dir", w.caDir("collective"))
	w.carry("collective", bob, "ca.crl")
	w.isNotTaken()
	x.isReset()
}

// The port ends with the lease of a member that is gone. A member whose service is not there has its callers reset.
func TestIncomingEnds(t *testing.T) {
	w := listening(t)
	w.configure(alice, clientConfig("", w.addr4(bob).String())+incomingTable(incomingPort, "127.0.0.1:81"))
	w.restart(alice)
	w.isTaken()
	if r := w.try(server, "curl", "--silent", "--show-error", "--max-time", "5", "http://"+port(w.addr4(bob), incomingPort)+"/file"); r.code != 56 && r.code != 55 && r.code != 7 { // as it receives, sends or connects
		t.Errorf("nobody serves, and the caller's connection is not reset: %v", r)
	}
	w.dcol(alice, "down")
	w.isNotTaken()
}

// A port that another program has, without listening there, cannot be had. The member is told, asks again, and has it when it is free.
func TestIncomingPortIsNotFree(t *testing.T) {
	w := callable(t, "10s")
	holder := w.host(bob).Command(w.life(), "python3", "-c", fmt.Sprintf(
		"import socket, sys\ns = socket.socket()\ns.bind(('', %d))\nprint('bound', flush=True)\nsys.stdin.read()", incomingPort))
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "bound\n" {
		t.Fatalf("the program that has the port says %q: %v", line, err)
	}
	w.start(bob)
	w.start(alice)
	w.eventually("bob's relay cannot listen", func() error {
		p := w.part(bob, incomingPart)
		return holds(strings.Contains(p.Problem, "address already in use"), "it has %+v", p)
	})
	w.restart(alice) // who asks at once
	w.incoming(alice, false, "port-unusable")
	if out := w.dcol(alice, "status"); !strings.Contains(out, "port-unusable") {
		t.Errorf("alice's status does not say why:\n%s", out)
	}
	stdin.Close()
	if err := holder.Wait(); err != nil {
		t.Fatal(err)
	}
	w.isTaken()
	w.called(w.addr4(bob)).goesOn()
}
