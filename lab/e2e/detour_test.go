package e2e

import (
	"strings"
	"testing"
)

// The waypoint in use vanishes, and another one takes its place.
func TestSecondWaypoint(t *testing.T) {
	w := standard(newWorld(t))
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective")) // mallory has reformed
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(waypointConfig(labAllowed), bob, mallory))
	w.configure(alice, clientConfig("", w.addr4(bob).String())+
		"[[client.waypoint]]\nname = \"mallory\"\naddresses = [\""+w.addr4(mallory).String()+"\"]\n")
	w.start(bob)
	w.start(mallory)
	w.start(alice)
	w.eventually("both waypoints are up", func() error {
		for _, s := range w.mustStatus(alice).Client.Waypoints {
			if err := holds(s.State == "up", "%s is %s: %s", s.Name, s.State, s.Why); err != nil {
				return err
			}
		}
		return nil
	})
	x := w.curl(w.url())
	first := detour(w.detoured()).Waypoint
	x.goesOn()
	w.link(first, true)
	x.goesOn()
	w.eventually("the other waypoint takes the place of "+first, func() error {
		c, err := w.only()
		if err != nil {
			return err
		}
		for _, s := range c.Subflows {
			if s.Kind == "mapped" && s.Waypoint != first && s.State == "up" {
				return nil
			}
		}
		return holds(false, "it has %+v", c.Subflows)
	})
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
}

// An administrator reloads the waypoint's firewall, which flushes all tables. Connections go on, and dcol's
// table returns with its mappings. (Without the table the kernel translates nothing, so a detour may be reset
// in the meantime.)
func TestFirewallReloaded(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	before := w.detoured()
	held := w.mappingKeys()
	w.run(bob, "nft", "flush ruleset")
	x.goesOn()
	w.eventually("the table is back", func() error {
		r := w.try(bob, "nft", "list", "table", "inet", "dcol")
		return holds(r.code == 0, "%v", r)
	})
	if now := w.mappingKeys(); strings.Join(now, " ") != strings.Join(held, " ") {
		t.Errorf("mappings after a reload: %q, want %q", now, held)
	}
	if after := w.detoured(); after.Token != before.Token {
		t.Errorf("another connection: %+v, before %+v", after, before)
	}
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
}

// A server that takes no subflows, or does not speak MPTCP at all, costs its
// users nothing.
func TestServerWithoutSubflows(t *testing.T) {
	w := standard(newWorld(t))
	w.run(server, "ip", "mptcp", "limits", "set", "subflow", "0")
	w.startBoth()
	x := w.curl(w.url())
	w.eventually("a detour was tried", func() error {
		n := w.mustStatus(alice).Client.Counters.SubflowsAsked
		return holds(n > 0, "%d subflows were asked for", n)
	})
	w.subflows("direct up")
	x.goesOn()
	x.endsWell()
}

func TestServerWithoutMPTCP(t *testing.T) {
	w := standard(plainWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	x.goesOn()
	if all := w.mustStatus(alice).Client.Connections; len(all) != 0 {
		t.Errorf("a connection that fell back to TCP is shown as MPTCP: %+v", all)
	}
	x.endsWell()
}

// A connection that is older than the agent keeps the kernel's path manager, and
// is left alone.
func TestConnectionOlderThanAgent(t *testing.T) {
	w := standard(newWorld(t))
	old := w.curl(w.url())
	old.goesOn()
	w.startBoth()
	w.eventually("the status says that it is not managed", func() error {
		c, err := w.only()
		if err != nil {
			return err
		}
		return holds(c.Note != "" && len(c.Subflows) == 1, "it says %+v", c)
	})
	old.goesOn()
	old.endsWell()
	x := w.curl(w.url())
	w.detoured()
	x.endsWell()
}

// Two members that are client and waypoint both: each uses the other.
func TestMutualMembers(t *testing.T) {
	w := standard(newWorld(t))
	for host, other := range map[string]string{alice: bob, bob: alice} {
		config := strings.Replace(clientConfig("", w.addr4(other).String()), `["client"]`, `["client", "waypoint"]`, 1)
		config = strings.Replace(config, `"`+bob+`"`, `"`+other+`"`, 1)
		config = strings.Replace(config, "name = \""+alice, "name = \""+host, 1)
		w.configure(host, strings.ReplaceAll(config, "/"+alice+".", "/"+host+".")+"\n[waypoint]\n"+labAllowed)
	}
	w.startBoth()
	w.eventually("bob has a session with alice", func() error {
		s := w.mustStatus(bob).Client.Waypoints[0]
		return holds(s.State == "up", "it is %s: %s", s.State, s.Why)
	})
	ofAlice := w.curl(w.url())
	w.detoured()
	ofBob := w.transfer(bob, program, "run", "--", "curl", "--silent", "--no-buffer", w.url())
	w.eventually("bob's connection has a detour", func() error {
		all := w.mustStatus(bob).Client.Connections
		return holds(len(all) == 1 && len(all[0].Subflows) == 2 && all[0].Subflows[1].Waypoint == alice, "it has %+v", all)
	})
	ofAlice.goesOn()
	ofBob.goesOn()
	// Each goes on while the other's agent is away, and finds it again.
	w.restart(bob)
	w.restart(alice)
	w.waypointUp()
	w.detoured()
	ofAlice.endsWell()
	ofBob.endsWell()
}
