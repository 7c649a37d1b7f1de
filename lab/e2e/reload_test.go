package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/crew"
)

// A changed configuration is taken over while a download runs, by dcol reload and by SIGHUP; one with an error
// changes nothing.
func TestReload(t *testing.T) {
	w := standard(newWorld(t))
	ofAlice, _ := w.startBoth()
	good := clientConfig("", w.addr4(bob).String())
	x := w.curl(w.url())
	w.detoured()

	w.dcol(alice, "config", "set", "client.avoid", `["bob"]`)
	w.dcol(alice, "config", "set", "client.kinds", `["mapped", "in-band"]`)
	if said := w.dcol(alice, "config", "diff"); said != "dcol reload takes over:\n  client.avoid: [] -> [\"bob\"]\n"+
		"in effect after a restart of the agent:\n  client.kinds: [\"mapped\"] -> [\"mapped\", \"in-band\"]\n" {
		t.Errorf("dcol config diff says %q", said)
	}
	if said := w.dcol(alice, "reload"); !strings.HasPrefix(said, "in effect now:\n  client.avoid: [] -> [\"bob\"]\n") {
		t.Errorf("dcol reload says %q", said)
	}
	w.subflows("direct up")
	x.goesOn()

	w.configure(alice, strings.Replace(good, "[client]\n", "[client]\nsubflows = 99\n", 1))
	w.fails(alice, []string{"reload"}, "dcol.toml:", "client.subflows", "1 to 8")
	pid := w.agentOf(alice)
	w.run(alice, "kill", "-HUP", fmt.Sprint(pid))
	w.eventually("the error is logged", func() error {
		log, err := os.ReadFile(ofAlice.log)
		return holds(err == nil && strings.Contains(string(log), "the configuration is not reloaded, and nothing has changed"), "it is not: %v", err)
	})
	if s := w.mustStatus(alice).Client.Steering; len(s.Avoid) != 1 {
		t.Errorf("after a broken file, steering is %+v", s)
	}

	// Root replaces the file, and systemctl reload lets the agent's user read it.
	w.write(alice, etc+"dcol.toml", []byte(good), 0o600)
	w.fails(alice, []string{"reload"}, "permission denied", "systemctl reload dcol")
	if err := crew.HandOver(w.host(alice)); err != nil {
		t.Fatal(err)
	}
	w.run(alice, "kill", "-HUP", fmt.Sprint(pid))
	w.detoured()
	x.goesOn()

	w.dcol(bob, "config", "set", "waypoint.deny_ports", "[25, 6667]")
	if said := w.dcol(bob, "reload"); said != "in effect now:\n  waypoint.deny_ports: [25] -> [25, 6667]\n" {
		t.Errorf("dcol reload says %q", said)
	}
	if said := w.run(bob, "nft", "list", "table", "inet", "dcol"); !strings.Contains(said, "6667") {
		t.Errorf("the rules do not have the new port:\n%s", said)
	}
	x.goesOn()
	if now := w.agentOf(alice); now != pid {
		t.Errorf("the agent was process %d and is %d", pid, now)
	}
	x.endsWell()
}
