package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The client's agent is stopped, or killed, while it looks after a connection:
// the connection goes on, the next agent adopts it with its subflows, and what
// the agents changed on the host is put back.
func TestAgentRestart(t *testing.T) {
	w := standard(newWorld(t))
	ofAlice, _ := w.startBoth()
	if pm := w.pathManager(alice); pm != "userspace" {
		t.Fatalf("with an agent new sockets are left to a path manager in %s", pm)
	}
	x := w.curl(w.url())
	before := w.detoured()
	wantPM := func(want, when string) {
		t.Helper()
		if pm := w.pathManager(alice); pm != want {
			t.Errorf("%s new sockets are left to a path manager in %s, want %s", when, pm, want)
		}
	}

	ofAlice.stop()
	wantPM("kernel", "after SIGTERM")
	x.goesOn()
	ofAlice = w.start(alice)
	w.waypointUp()
	w.unchanged(before)

	ofAlice.kill()
	wantPM("userspace", "after SIGKILL")
	x.goesOn()
	ofAlice = w.start(alice)
	w.waypointUp()
	w.unchanged(before)
	ofAlice.stop()
	wantPM("kernel", "after the next agent's SIGTERM")

	ofAlice = w.start(alice)
	ofAlice.kill()
	wantPM("userspace", "after SIGKILL")
	w.dcol(alice, "down")
	wantPM("kernel", "after dcol down")

	// An adopted connection is looked after like any other.
	w.start(alice)
	w.waypointUp()
	w.unchanged(before)
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
}

// The waypoint's agent is restarted. Mappings and connections stay, the next agent knows them, and mappings
// expire unless they are renewed. dcol down then leaves no trace.
func TestWaypointRestart(t *testing.T) {
	w := newWorld(t)
	untouched := w.sysctls(bob)
	standard(w)
	// As long as anything may take that is to happen before a mapping expires.
	lifetime := fmt.Sprintf("mapping_lifetime = \"%v\"\n", patience)
	w.configure(bob, waypointConfig(labAllowed+lifetime))
	ofAlice, ofBob := w.startBoth()
	x := w.curl(w.url())
	before := w.detoured()
	w.dcol(alice, "map", port(w.addr4(server), 81), "--via", bob)
	held := w.mappingKeys()
	if len(held) != 2 {
		t.Fatalf("mappings for two servers: %q", held)
	}
	for _, end := range []func(*agent){(*agent).stop, (*agent).kill} {
		session := w.waypoint()
		end(ofBob)
		w.fails(bob, []string{"status"}, "no agent is running")
		w.cut()
		x.goesOn()
		w.mend()
		if now := w.mappingKeys(); !slices.Equal(now, held) {
			t.Errorf("mappings without an agent: %q, want %q", now, held)
		}
		ofBob = w.start(bob)
		w.waypointBack(session)
		w.unchanged(before)
		w.dcol(alice, "map", port(w.addr4(server), 81), "--via", bob)
		if now := w.mappingKeys(); !slices.Equal(now, held) {
			t.Errorf("mappings after the agent's restart: %q, want %q", now, held)
		}
	}
	if s := w.mustStatus(bob).Serving; len(s.Members) != 1 || s.Members[0].Member != alice || s.Members[0].Flows != 1 {
		t.Errorf("after a restart bob does not know whom it serves: %+v", s)
	}

	// Mappings expire without renewal. Connections over them go on.
	ofAlice.stop()
	w.within(2*patience, "mappings lapse", func() error {
		left := w.mappings("servers4")
		return holds(len(left) == 0, "there are %q", left)
	})
	if flows := w.ourFlows(); len(flows) != 1 {
		t.Errorf("with the mapping its connection went: %q", flows)
	}
	x.goesOn()

	ofBob.kill()
	w.dcol(bob, "down")
	if rules := w.run(bob, "nft", "list", "ruleset"); rules != "" {
		t.Errorf("dcol down leaves\n%s", rules)
	}
	if flows := w.ourFlows(); len(flows) != 0 {
		t.Errorf("dcol down leaves %q", flows)
	}
	w.sameSysctls(bob, untouched)
	if left := strings.Fields(w.run(bob, "ls", "-A", "--ignore=history.db", "/var/lib/dcol")); len(left) != 0 {
		t.Errorf("dcol down leaves %q", left)
	}
	if left := strings.Fields(w.run(bob, "find", "/run/dcol", "!", "-type", "d")); len(left) != 0 {
		t.Errorf("dcol down leaves %q", left)
	}
	w.dcol(bob, "down") // doing it again is harmless
	x.endsWell()
}

// dcol down stops an agent that runs, and what the agent did to the host is undone.
func TestDownStopsTheAgent(t *testing.T) {
	w := standard(newWorld(t))
	untouched := w.sysctls(bob)
	ofAlice, ofBob := w.startBoth()
	for _, host := range []string{bob, alice} {
		w.says(w.try(host, program, "down"), "changes of dcol to this host's network are removed")
	}
	for _, a := range []*agent{ofBob, ofAlice} {
		select {
		case <-a.ended:
		default:
			t.Fatalf("the agent of %s still runs after dcol down", a.host)
		}
		if a.err != nil {
			t.Errorf("the agent of %s was ended: %v", a.host, a.err)
		}
	}
	if rules := w.run(bob, "nft", "list", "ruleset"); rules != "" {
		t.Errorf("dcol down leaves\n%s", rules)
	}
	w.sameSysctls(bob, untouched)
}

// dcol down works on a host that never was a member.
func TestDownWithoutAgent(t *testing.T) {
	w := newWorld(t)
	before := w.sysctls(mallory)
	w.dcol(mallory, "down")
	w.sameSysctls(mallory, before)
}
