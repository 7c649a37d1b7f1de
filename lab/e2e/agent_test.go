package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A user without rights takes every name that an agent could want for a lock, and the agent starts and goes on.
func TestUsersCannotStopTheAgent(t *testing.T) {
	w := standard(newWorld(t))
	squatter := w.host(alice).Command(w.life(), "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
		"socat", "ABSTRACT-LISTEN:dcol-agent,fork", "EXEC:true")
	if err := squatter.Start(); err != nil {
		t.Fatal(err)
	}
	w.Cleanup(func() { squatter.Process.Kill(); squatter.Wait() })
	w.eventually("the name is taken", func() error {
		return holds(strings.Contains(w.run(alice, "cat", "/proc/net/unix"), "@dcol-agent"), "it is not")
	})
	w.startBoth()
	w.waypointUp()
	w.mustFail(w.try(alice, "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c",
		"flock --nonblock /run/dcol/agent-*.lock true || { echo error: refused >&2; exit 1; }"), "refused")
}

// SIGHUP is no end, and no reload: that is said.
func TestHangup(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	before, pid := w.detoured(), w.agentOf(alice)
	for range 2 {
		w.run(alice, "kill", "-HUP", fmt.Sprint(pid))
		x.goesOn()
	}
	w.mustStatus(alice)
	if now := w.agentOf(alice); now != pid || pid == 0 {
		t.Errorf("the agent was process %d and is %d", pid, now)
	}
	w.unchanged(before)
	x.endsWell()
}

// Damaged records of sysctls keep neither the agent nor dcol down from their work. Both say what was not put back,
// until the operator has seen to it.
func TestDamagedSysctlRecords(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	w.waypointUp()
	damaged := map[string]string{alice: "client-sysctls.json", bob: "waypoint-sysctls.json"}
	for host, record := range damaged {
		w.endAgent(host, "KILL")
		w.run(host, "truncate", "--size", "0", "/var/lib/dcol/"+record)
		w.start(host)
		if said := strings.Join(w.mustStatus(host).Problems, "\n"); !strings.Contains(said, record) || !strings.Contains(said, "None of them can be put back") {
			t.Errorf("the problems of %s:\n%s", host, said)
		}
	}
	w.waypointUp()
	x := w.curl(w.url())
	w.detoured()
	x.goesOn()
	for host, record := range damaged {
		w.endAgent(host, "TERM")
		w.fails(host, []string{"down"}, record, "was damaged", "None of them can be put back", "then remove the damaged file")
		w.run(host, "sh", "-ec", "rm /var/lib/dcol/*.damaged-*")
		w.says(w.try(host, program, "down"), "dcol left no trace")
	}
}
