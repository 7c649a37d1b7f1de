package e2e

import (
	"fmt"
	"os"
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

// A user without rights has the port of a role before the agent starts. The other roles run, status names the
// program and its user, and the role begins when the port is free.
func TestUsersCannotKeepTheAgentFromItsPort(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(alice, strings.Replace(clientConfig("", w.addr4(bob).String()), `["client"]`, `["client", "waypoint"]`, 1))
	squatter := w.host(alice).Command(w.life(), "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
		"socat", "-u", "UDP4-RECV:45672", "STDOUT")
	if err := squatter.Start(); err != nil {
		t.Fatal(err)
	}
	w.Cleanup(func() { squatter.Process.Kill(); squatter.Wait() })
	w.eventually("the port is taken", func() error {
		return holds(w.run(alice, "ss", "-Hulpn", "sport = :45672") != "", "it is not")
	})
	ofAlice, _ := w.startBoth()
	x := w.curl(w.url())
	w.detoured()
	status := w.dcol(alice, "status")
	for _, word := range []string{"PROBLEM: the waypoint role does not run", "udp port 45672", "socat of user nobody (process ", "end that program (kill "} {
		if !strings.Contains(status, word) {
			t.Errorf("status does not say %q:\n%s", word, status)
		}
	}
	if s := w.mustStatus(alice); s.Serving != nil || len(s.TakenPorts) != 1 {
		t.Errorf("serving is %+v, taken ports are %+v", s.Serving, s.TakenPorts)
	}
	squatter.Process.Kill()
	w.within(patience/2, "the waypoint role runs", func() error {
		s := w.mustStatus(alice)
		return holds(s.Serving != nil && len(s.TakenPorts) == 0, "problems are %q", s.Problems)
	})
	x.endsWell()
	log, err := os.ReadFile(ofAlice.log)
	if n := strings.Count(string(log), "a role waits for its port"); err != nil || n != 1 {
		t.Errorf("logged %d times, %v:\n%s", n, err, log)
	}
}

// SIGHUP does not end the agent, and with an unchanged configuration it changes nothing.
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

// Damaged records of sysctls stop neither the agent nor dcol down. Both report what was not restored, until
// the operator has dealt with it.
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
		w.says(w.try(host, program, "down"), "changes of dcol to this host's network are removed")
	}
}

// Another path manager takes new connections while the agent runs. The agent reports it, with the remedy.
func TestPathManagerTakenOver(t *testing.T) {
	w := standard(newWorld(t))
	ofAlice, _ := w.startBoth()
	w.waypointUp()
	problems := func() string { return strings.Join(w.mustStatus(alice).Problems, "\n") }
	if said := problems(); said != "" {
		t.Errorf("problems: %s", said)
	}
	key, ours, others := "net.mptcp.path_manager", "userspace", "kernel"
	if w.try(alice, "sysctl", key).code != 0 {
		key, ours, others = "net.mptcp.pm_type", "1", "0"
	}
	w.sysctl(alice, key, others)
	if said := problems(); !strings.Contains(said, "another path manager has taken over") || !strings.Contains(said, "sysctl -w "+key+"="+ours) {
		t.Errorf("problems: %s", said)
	}
	w.eventually("the log says so, too", func() error {
		log, err := os.ReadFile(ofAlice.log)
		if err != nil {
			return err
		}
		return holds(strings.Contains(string(log), "does not manage the paths of new connections"), "%s", log)
	})
	w.sysctl(alice, key, ours)
	if said := problems(); said != "" {
		t.Errorf("problems, when it is ours again: %s", said)
	}
	w.sysctl(alice, "net.mptcp.enabled", "0")
	if said := problems(); !strings.Contains(said, "sysctl -w net.mptcp.enabled=1") {
		t.Errorf("problems: %s", said)
	}
}

// For a server without MPTCP, status does not recommend dcol run, which is in use. On a host that accepts
// such connections, status does not mention them.
func TestPlainServerIsNamed(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	w.waypointUp()
	start := func(host, name string, argv ...string) {
		cmd := w.host(host).Command(w.life(), name, argv...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
	listens := func(host string) {
		w.eventually(host+" listens", func() error {
			return holds(w.run(host, "ss", "-Htln", "sport = :8081") != "", "nothing listens")
		})
	}
	start(server, "socat", "TCP-LISTEN:8081,fork,reuseaddr", "EXEC:cat")
	start(alice, program, "run", "--", "socat", "TCP-LISTEN:8081,fork,reuseaddr", "EXEC:cat")
	listens(server)
	listens(alice)
	start(server, "sh", "-c", fmt.Sprintf("(echo hello; sleep 60) | socat - TCP:%v:8081", w.addr4(alice)))
	start(alice, "sh", "-c", fmt.Sprintf("(echo hello; sleep 60) | %s run -- socat - TCP:%v:8081", program, w.addr4(server)))
	to := fmt.Sprintf("%v:8081", w.addr4(server))
	w.eventually("the connection is named", func() error {
		plain := w.mustStatus(alice).Client.Plain
		return holds(len(plain) == 1 && plain[0].String() == to, "plain are %v", plain)
	})
	if said := w.dcol(alice, "status"); !strings.Contains(said, "1 connection is plain TCP although the program requests MPTCP") || !strings.Contains(said, "to "+to) ||
		strings.Contains(said, "dcol run") {
		t.Errorf("status:\n%s", said)
	}
}

// After an agent's restart, a connection's detour has the same kind as before, even where a mapping might
// have the same port of the waypoint, as without the authenticator.
func TestKindsAfterRestart(t *testing.T) {
	t.Parallel()
	for name, authenticator := range map[string]string{"authenticated": "", "by address": "in_band_authenticator = false\n"} {
		t.Run(name, func(t *testing.T) {
			w := standard(newWorld(t))
			w.configure(alice, clientOfAll(kindsLine("in-band", "mapped"), w.addr4(bob).String()))
			w.configure(bob, waypointConfig(labAllowed+authenticator))
			w.startBoth()
			w.kindIs("in-band", "ready")
			x := w.curl(w.url())
			before := w.subflows("direct up", "in-band up")
			for range 3 {
				w.restart(alice)
				w.waypointUp()
				w.kindIs("in-band", "ready")
				now := w.subflows("direct up", "in-band up")
				if now.Token != before.Token || detour(now).Local != detour(before).Local {
					t.Errorf("another detour: %+v, before %+v", now, before)
				}
				x.goesOn()
			}
			x.endsWell()
		})
	}
}
