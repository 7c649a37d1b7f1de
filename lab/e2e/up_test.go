package e2e

import (
	"strings"
	"testing"
)

// dcol up starts the agent if it does not run, and reports. dcol leave stops it and leaves nothing that would make
// this host a member.
func TestUpAndLeave(t *testing.T) {
	w := standard(newWorld(t))
	w.start(bob)
	if said := w.dcol(alice, "up"); !strings.HasPrefix(said, alice+" (client), agent running for ") {
		t.Errorf("dcol up says %q", said)
	}
	w.waypointUp()
	x := w.curl(w.url())
	w.detoured()
	pid := w.agentOf(alice)
	w.dcol(alice, "up")
	if now := w.agentOf(alice); now != pid || pid == 0 {
		t.Errorf("the agent was process %d and is %d", pid, now)
	}
	if said := w.dcol(alice, "status", "-d"); !strings.Contains(said, "traffic: ") || !strings.Contains(said, "LEAST RTT") {
		t.Errorf("dcol status -d says %q", said)
	}
	if said := w.dcol(alice, "leave"); !strings.Contains(said, "set aside: "+etc+"dcol.toml.left-") {
		t.Errorf("dcol leave says %q", said)
	}
	x.endsWell()
	w.fails(alice, []string{"status"}, "no agent is running")
	w.fails(alice, []string{"up"}, "this host is no member yet")
	w.fails(alice, []string{"leave"}, "this host is no member")
}
