package e2e

import (
	"fmt"
	"testing"
	"time"
)

// blockPort drops or refuses traffic to one of bob's TCP ports on the path, until unblock.
func (w *world) blockPort(port int, how string) {
	w.Helper()
	w.run(router, "nft", fmt.Sprintf("table inet blocked { chain forward { type filter hook forward priority 0; tcp dport %d %s; }; }", port, how))
}

func (w *world) unblock() { w.Helper(); w.run(router, "nft", "delete table inet blocked") }

// A host joins while a port of the coordinator is blocked. The command reports the port and the remedy, and
// fails. When the port is open, the same command resumes.
func TestJoinWithBlockedPorts(t *testing.T) {
	w := newWorld(t)
	w.goPublic()
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"))
	line := w.invitation()

	w.blockPort(45672, "drop")
	began := time.Now()
	w.fails(alice, []string{"join", line, "--client-only"}, "waiting, for 1 s now: an answer from the coordinator bob at TCP 11.0.2.1:45672",
		"no coordinator can be reached", "no answer: TCP port 45672 must be open in its firewall")
	if took := time.Since(began); took > 15*time.Second && slowness() == 1 {
		t.Errorf("it took %v", took)
	}
	w.unblock()
	w.blockPort(45672, "reject with tcp reset")
	w.fails(alice, []string{"join", line, "--client-only"}, "TCP port 45672 refuses connections: its agent does not run, or a firewall blocks the port")
	w.unblock()

	w.blockPort(45673, "drop")
	r := w.try(alice, program, "join", line, "--client-only")
	w.Log(r)
	for _, word := range []string{"This host is a member of friends now: alice.", "waiting, for 1 s now: ",
		"FAIL   member: not connected to a coordinator: ", "11.0.2.1:45673", "Allow TCP ports 45672 and 45673: incoming at the coordinator",
		"client: no waypoint is known, because no coordinator is connected"} {
		w.mentions(r, word)
	}
	if r.code != 1 {
		t.Errorf("exit code %d, want 1", r.code)
	}
	w.unblock()
	w.eventually("the agent has connected by itself", func() error {
		c := w.mustStatus(alice).Collective
		return holds(c.Coordinator.Connected, "%+v", c.Coordinator)
	})
	w.says(w.try(alice, program, "join", line), "This host is already the member alice of friends. The invitation was not used.",
		"ok     client: in-band and mapped detours through bob are ready")
}

// With IPv4 and IPv6, joining takes no longer, and the status in detail gives the reason why there are no in-band
// detours at the IPv6 address.
func TestJoinDualStack(t *testing.T) {
	w := newWorld(t)
	w.goPublic()
	for i, host := range []string{alice, bob} {
		const own = "ip address add fe80::%[3]d/64 dev %[2]s nodad; ip address add 2600:%[1]d::%[3]d/64 dev %[2]s nodad"
		w.run(router, "sh", "-ec", fmt.Sprintf(own, i+1, host, 1))
		w.run(host, "sh", "-ec", fmt.Sprintf(own+"; ip -6 route replace default via 2600:%[1]d::1", i+1, w.host(host).Interface(host), 2))
	}
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"))
	began := time.Now()
	w.says(w.try(alice, program, "join", w.invitation(), "--client-only"), "ok     client: in-band and mapped detours through bob are ready")
	if took := time.Since(began); took > 10*time.Second && slowness() == 1 {
		t.Errorf("it took %v", took)
	}
	w.eventually("both addresses of bob are up", func() error {
		all := w.mustStatus(alice).Client.Waypoints
		return holds(len(all) == 2 && all[0].State == "up" && all[1].State == "up", "%+v", all)
	})
	if r := w.try(alice, program, "status", "--details"); r.code != 0 {
		t.Error(r)
	} else {
		w.mentions(r, "bob at [2600:2::2]:45672, in-band is unusable: in-band detours need an IPv4 address of the waypoint, and this one is IPv6")
	}
}
