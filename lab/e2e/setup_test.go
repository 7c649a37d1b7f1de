package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// From nothing to a detour by three commands. Then another host joins, the one that carries the detour is
// expelled, and the coordinator goes away.
func TestThreeCommands(t *testing.T) {
	w := newWorld(t)
	at := w.goPublic()
	w.serve()
	w.showBackgroundAgents()

	began := time.Now()
	w.says(w.try(bob, program, "init", "friends"), "friends is created. This host is its coordinator and its member bob.",
		"The agent runs in the background", "ok     coordinator: hosts join and renew at TCP port 45672", "dcol invite")
	line := w.invitation()
	w.says(w.try(alice, program, "join", line, "--client-only"), "This host is a member of friends now: alice.",
		"ok     member: connected to the coordinator bob, 2 members known", "ok     client: in-band and mapped detours through bob are ready")
	x := w.curl("http://" + at[server].String() + "/file")
	w.subflows("direct up", "in-band up")
	if took := time.Since(began); took > time.Minute && slowness() == 1 {
		t.Errorf("the first detour took %v", took)
	} else {
		t.Logf("from nothing to the first detour: %v", took.Round(time.Millisecond))
	}
	x.goesOn()

	// Once more, it is told.
	w.says(w.try(alice, program, "join", line), "This host is already the member alice of friends. The invitation was not used.")
	w.says(w.try(bob, program, "init", "friends"), "The collective friends exists already; this host is its member bob.")
	w.fails(bob, []string{"init", "enemies"}, "this host is already the member bob of friends")

	w.says(w.try(mallory, program, "join", w.invitation("--name", "carol")), "This host is a member of friends now: carol.",
		"ok     waypoint: others reach UDP port 45672 of "+at[mallory].String(), "(checked by ")
	if said := w.dcol(bob, "members"); !strings.Contains(said, "friends: 3 members") || !strings.Contains(said, "bob (this host)") {
		t.Errorf("bob's members:\n%s", said)
	}
	x.endsWell()
}

// From nothing to a detour on hosts with IPv6 only. The detour is a mapped one, because in-band detours lead to IPv4 servers.
func TestThreeCommandsIPv6Only(t *testing.T) {
	w := newWorld(t)
	at := w.goPublic6()
	w.serve()
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"), "friends is created. This host is its coordinator and its member bob.",
		"ok     coordinator: hosts join and renew at TCP port 45672")
	w.says(w.try(alice, program, "join", w.invitation()), "This host is a member of friends now: alice.",
		"ok     member: connected to the coordinator bob, 2 members known",
		"ok     waypoint: others reach UDP port 45672 of "+at[alice].String(), "(checked by bob)")
	if said := w.dcol(alice, "status"); strings.Contains(said, "no router to ask") {
		t.Errorf("a host without IPv4 misses an IPv4 router:\n%s", said)
	}
	x := w.curl("http://" + port(at[server], 80) + "/file")
	w.subflows("direct up", "mapped up")
	x.goesOn()
	x.endsWell()
}

// invitation returns a line of bob's.
func (w *world) invitation(more ...string) string {
	w.Helper()
	r := w.try(bob, append([]string{program, "invite"}, more...)...)
	if r.code != 0 || strings.Count(r.stdout, "\n") != 1 || !strings.HasPrefix(r.stdout, "dcol1-") || !strings.Contains(r.stderr, "dcol join") {
		w.Fatalf("dcol invite: %v", r)
	}
	return strings.TrimSpace(r.stdout)
}

// says checks that a command succeeded and printed all these words.
func (w *world) says(r result, words ...string) {
	w.Helper()
	w.Log(r)
	if r.code != 0 {
		w.Fatalf("%v", r)
	}
	for _, word := range words {
		w.mentions(r, word)
	}
}

// mentions checks that a command printed this word.
func (w *world) mentions(r result, word string) {
	w.Helper()
	if !strings.Contains(r.stdout+r.stderr, word) {
		w.Errorf("it does not say %q\n%v", word, r)
	}
}

// goPublic gives all hosts public IPv4 addresses only, for which dcol's default configuration is right.
func (w *world) goPublic() map[string]netip.Addr {
	w.Helper()
	all := map[string]netip.Addr{}
	for _, host := range []string{alice, bob, mallory, server} {
		own := w.addr4(host).As4()
		own[0] = 11
		gateway := own
		gateway[3]++
		all[host] = netip.AddrFrom4(own)
		w.run(router, "sh", "-ec", fmt.Sprintf("ip link set %[1]s arp on; ip address add %[2]v/30 dev %[1]s", host, netip.AddrFrom4(gateway)))
		w.run(host, "sh", "-ec", fmt.Sprintf("ip link set %[1]s arp on; ip -4 address flush dev %[1]s; ip -6 address flush dev %[1]s; "+
			"ip address add %[2]v/30 dev %[1]s; ip route add default via %[3]v", host, all[host], netip.AddrFrom4(gateway)))
	}
	return all
}

// goPublic6 does the same with public IPv6 addresses only. A router needs link-local addresses, too: with them it asks for its
// neighbours.
func (w *world) goPublic6() map[string]netip.Addr {
	w.Helper()
	all := map[string]netip.Addr{}
	for i, host := range []string{alice, bob, mallory, server} {
		network := fmt.Sprintf("2a00:0:%d::", i+1) // a waypoint forwards to nothing in its own /56
		all[host] = netip.MustParseAddr(network + "1")
		w.run(router, "sh", "-ec", fmt.Sprintf("ip link set %[1]s arp on; ip address add fe80::2/64 dev %[1]s nodad; ip address add %[2]s2/64 dev %[1]s nodad", host, network))
		w.run(host, "sh", "-ec", fmt.Sprintf("ip link set %[1]s arp on; ip -4 address flush dev %[1]s; ip -6 address flush dev %[1]s scope global; "+
			"ip address add fe80::1/64 dev %[1]s nodad; ip address add %[2]s1/64 dev %[1]s nodad; ip route replace default via %[2]s2", host, network))
	}
	return all
}

// showBackgroundAgents shows the logs of agents that dcol itself has started, after a failure.
func (w *world) showBackgroundAgents() {
	w.Cleanup(func() {
		if !w.Failed() {
			return
		}
		for _, host := range []string{alice, bob, mallory} {
			if log, err := w.read(host, "/var/lib/dcol/agent.log"); err == nil {
				w.Logf("the agent of %s, in the background:\n%s", host, log)
			}
		}
	})
}
