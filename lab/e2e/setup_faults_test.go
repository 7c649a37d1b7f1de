package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// The coordinator crashes, and members go on; it comes back, and expels the waypoint that carries a download.
func TestMembersGoOn(t *testing.T) {
	w := newWorld(t)
	at := w.goPublic()
	w.serve()
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"))
	w.says(w.try(mallory, program, "join", w.invitation("--name", "carol")))
	w.says(w.try(alice, program, "join", w.invitation(), "--client-only"))
	url := "http://" + at[server].String() + "/file"

	// Without its coordinator, an agent that starts knows the waypoints from its copy of the directory.
	w.endAgent(bob, "KILL")
	w.endAgent(alice, "TERM")
	w.start(alice)
	w.fails(server, []string{"join", "dcol1-AAAA"}, "not a complete invitation")
	x := w.curl(url)
	w.eventually("a new connection has a detour through carol", func() error {
		c, err := w.only()
		if err != nil {
			return err
		}
		return holds(slices.ContainsFunc(c.Subflows, func(s api.Subflow) bool {
			return s.Waypoint == "carol" && s.Kind == "in-band" && s.State == "up"
		}), "it has %+v", c.Subflows)
	})
	x.goesOn()

	// The same command restarts the crashed agent. Its log does not grow without limit.
	w.run(bob, "truncate", "--size", "11M", "/var/lib/dcol/agent.log")
	w.says(w.try(bob, program, "init", "friends"), "The collective friends exists already", "The agent runs")
	if old, log := w.run(bob, "stat", "--format", "%s", "/var/lib/dcol/agent.log.1"), w.run(bob, "cat", "/var/lib/dcol/agent.log"); old < "11534336" || len(log) > 1<<20 ||
		!strings.Contains(log, "agent is running") {
		t.Errorf("the old log has %s bytes; the new one:\n%s", old, log)
	}
	w.eventually("alice and carol are connected again", func() error {
		for _, host := range []string{alice, mallory} {
			if c := w.mustStatus(host).Collective; !c.Coordinator.Connected {
				return holds(false, "%s: %+v", host, c.Coordinator)
			}
		}
		return nil
	})
	w.eventually("carol has a session with bob", func() error { return w.serves("carol", true) })

	began := time.Now()
	w.says(w.try(bob, program, "expel", "carol", "--why", "sent spam"), "carol is expelled", "all connected members were notified",
		"The one connected waypoint confirmed")
	w.eventually("alice's connection has left carol", func() error {
		for _, p := range w.mustStatus(alice).Client.Waypoints {
			if p.Name == "carol" {
				return holds(false, "alice still uses it: %+v", p)
			}
		}
		c, err := w.only()
		if err != nil {
			return err
		}
		return holds(!slices.ContainsFunc(c.Subflows, func(s api.Subflow) bool { return s.Waypoint == "carol" }), "%+v", c.Subflows)
	})
	w.eventually("bob serves carol no more", func() error { return w.serves("carol", false) })
	if took := time.Since(began); took > 5*time.Second && slowness() == 1 {
		t.Errorf("the expulsion took %v to be known", took)
	}
	x.goesOn()
	if said := w.dcol(bob, "members"); !strings.Contains(said, "carol was expelled on") || !strings.Contains(said, "sent spam") {
		t.Errorf("bob's members:\n%s", said)
	}

	// That survives restarts of either agent.
	w.endAgent(bob, "TERM")
	w.says(w.try(bob, program, "init", "friends"))
	w.eventually("carol knows that it was expelled, and is not let in", func() error {
		s := w.mustStatus(mallory)
		if !strings.Contains(strings.Join(s.Problems, "\n"), "sent spam") {
			return holds(false, "carol's problems: %q", s.Problems)
		}
		return w.serves("carol", false)
	})
	x.endsWell()
}

// Lines that do not count, and names that are taken, as a person meets them.
func TestJoinRefused(t *testing.T) {
	w := newWorld(t)
	w.goPublic()
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"))
	used := w.invitation()
	w.says(w.try(alice, program, "join", used, "--client-only"))

	tampered := []byte(used)
	tampered[len(tampered)/2] ^= 1
	w.fails(mallory, []string{"join", string(tampered)}, "not a complete invitation", "copy the whole line that")
	w.fails(mallory, []string{"join", used[:len(used)-3]}, "not a complete invitation")
	w.fails(mallory, []string{"join", used}, "this invitation was used on", "by alice", "get a new invitation")
	brief := w.invitation("--expires", "1s")
	time.Sleep(1100 * time.Millisecond)
	w.fails(mallory, []string{"join", brief}, "this invitation expired on", "get a new invitation")
	w.fails(mallory, []string{"join", w.invitation("--name", "dave"), "--name", "erin"}, "is for dave, not for erin", "--name dave")

	// Nothing of this has made it a member, or kept it from being one.
	again := w.invitation()
	w.fails(mallory, []string{"join", again, "--name", "alice"}, "the name alice is taken", "--name alice-2")
	w.fails(mallory, []string{"members"}, "no agent is running")
	w.says(w.try(mallory, program, "join", again, "--name", "alice-2", "--no-start"), "This host is a member of friends now: alice-2", "The agent was not started")
	w.fails(bob, []string{"invite", "--name", "alice"}, "the name alice is taken")
	w.fails(alice, []string{"invite"}, "this host is not a coordinator")
	w.fails(bob, []string{"expel", "bob", "--why", "tired"}, "this is the coordinator's own host")
	w.fails(bob, []string{"expel", "zoe", "--why", "tired"}, "there is no such member")

	// Expelled is expelled, by name and by key.
	w.says(w.try(bob, program, "expel", "alice-2", "--why", "sent spam"))
	w.run(mallory, "rm", "/etc/dcol/dcol.toml")
	w.fails(mallory, []string{"join", w.invitation()}, "was expelled on", "sent spam")

	w.endAgent(bob, "KILL")
	w.fails(server, []string{"join", again}, "no coordinator can be reached", "bob@11.0.2.1:45672")
}

// A host that leaves is gone for the others at once, and its name can be given to another host. Without a coordinator it
// leaves all the same, and says what that means.
func TestLeave(t *testing.T) {
	w := newWorld(t)
	w.goPublic()
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"))
	w.says(w.try(alice, program, "join", w.invitation()))
	w.says(w.try(mallory, program, "join", w.invitation(), "--name", "carol"))
	lists := func(host, member string, want bool) {
		t.Helper()
		w.eventually(fmt.Sprintf("%s lists %s: %v", host, member, want), func() error {
			said := w.dcol(host, "members")
			return holds(strings.Contains(said, "\n  "+member+" ") == want, "it says\n%s", said)
		})
	}
	lists(mallory, "alice", true)
	w.eventually("bob serves alice", func() error { return w.serves("alice", true) })

	left := w.try(alice, program, "leave")
	w.says(left, "alice is no longer a member on this host")
	if strings.Contains(left.stderr, "does not know that yet") {
		t.Errorf("the coordinator was not told: %v", left)
	}
	lists(bob, "alice", false)
	lists(mallory, "alice", false)
	w.eventually("bob serves alice no more", func() error {
		for _, m := range w.mustStatus(bob).Serving.Members {
			if m.Member == "alice" && (!m.Expelled || m.Present()) {
				return holds(false, "%+v", m)
			}
		}
		return nil
	})
	if c := w.mustStatus(bob).Coordinator; c.Members != 2 || c.Expelled != 0 {
		t.Errorf("bob coordinates %+v", c)
	}

	// The name is not for everybody.
	w.fails(alice, []string{"join", w.invitation(), "--name", "alice"}, "its holder left on", "only an invitation for this name")
	w.says(w.try(alice, program, "join", w.invitation("--name", "alice"), "--client-only"), "This host is a member of friends now: alice.",
		"ok     member: connected to the coordinator bob")
	lists(bob, "alice", true)
	lists(mallory, "alice", true)

	// Without a coordinator a host leaves all the same.
	w.endAgent(bob, "KILL")
	began := time.Now()
	w.says(w.try(alice, program, "leave"), "alice is no longer a member on this host", "The coordinator does not know that yet", "dcol expel alice")
	t.Logf("leaving without a coordinator took %v", time.Since(began).Round(time.Millisecond))
	w.fails(alice, []string{"members"}, "no agent is running")
	if _, err := w.read(alice, "/etc/dcol/dcol.toml"); err == nil {
		t.Error("the configuration is still there")
	}
}

// Two hosts join at once with one invitation. One becomes a member. The other learns that the invitation was
// used. It keeps only its key, with which it joins by another invitation.
func TestTwoJoinsWithOneLine(t *testing.T) {
	w := newWorld(t)
	w.goPublic()
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"))
	line := w.invitation()
	hosts, results := []string{alice, mallory}, make([]result, 2)
	var joining sync.WaitGroup
	for i, host := range hosts {
		joining.Go(func() { results[i] = w.try(host, program, "join", line, "--name", host) })
	}
	joining.Wait()
	in := slices.IndexFunc(results, func(r result) bool { return r.code == 0 })
	if in < 0 {
		t.Fatalf("none has joined: %v", results)
	}
	joined, other := hosts[in], hosts[1-in]
	w.says(results[in], "This host is a member of friends now: "+joined)
	w.mustFail(results[1-in], "this invitation was used on", "by "+joined, "get a new invitation")
	if left := w.run(other, "find", "/etc/dcol", "/var/lib/dcol", "-type", "f"); left != "/var/lib/dcol/identity/member.key\n" {
		t.Errorf("on %s there is\n%s", other, left)
	}
	if w.agentOf(other) != 0 {
		t.Errorf("an agent runs on %s", other)
	}
	if said := w.dcol(bob, "members"); !strings.Contains(said, "friends: 2 members") || strings.Contains(said, other) {
		t.Errorf("bob's members:\n%s", said)
	}
	w.says(w.try(other, program, "join", w.invitation(), "--name", other), "This host is a member of friends now: "+other)
}

// A host that others cannot reach still becomes a member and a client, and is notified.
func TestJoinBehindAFirewall(t *testing.T) {
	w := newWorld(t)
	at := w.goPublic()
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"))
	w.run(router, "nft", fmt.Sprintf("table inet firewall { chain forward { type filter hook forward priority 0; ip daddr %v udp dport 45672 drop; }; }", at[alice]))
	w.says(w.try(alice, program, "join", w.invitation()), "ok     member: connected to the coordinator bob",
		"ok     client: in-band and mapped detours through bob are ready", "no     waypoint: bob cannot reach UDP port 45672 of "+at[alice].String(), "Allow that port")
}

// A host without cgroup v2 has no in-band detours as a client. It is a member and has the other kinds, and
// joining it takes no longer.
func TestJoinWithoutCgroup(t *testing.T) {
	w := newWorld(t)
	w.goPublic()
	w.showBackgroundAgents()
	w.says(w.try(bob, program, "init", "friends"))
	w.run(alice, "mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
	began := time.Now()
	r := w.try(alice, program, "join", w.invitation(), "--client-only")
	w.says(r, "ok     client: mapped detours through bob are ready",
		"warn   client: in-band detours are not used: ", "mount -t cgroup2", "Other kinds of detours do not need this")
	if took := time.Since(began); took > 10*time.Second && slowness() == 1 {
		t.Errorf("it took %v", took)
	}
}

// On a host with systemd, the unit is written and enabled. A script replaces systemd here.
func TestStartedBySystemd(t *testing.T) {
	w := newWorld(t)
	w.goPublic()
	const systemctl = `#!/bin/sh
echo "$*" >>/var/lib/asked
case "$1" in
cat) [ -e "/etc/systemd/system/$2" ] ;;
enable) setsid $(sed -n 's/^ExecStart=//p' "/etc/systemd/system/$3") >/var/lib/journal 2>&1 & ;;
esac
`
	w.run(bob, "mkdir", "-p", "/run/systemd/system", "/etc/systemd/system", "/var/lib/bin")
	w.write(bob, "/var/lib/bin/systemctl", []byte(systemctl), 0o755)
	w.write(bob, "/var/lib/bin/systemd-sysusers", []byte("#!/bin/sh\necho \"systemd-sysusers $*\" >>/var/lib/asked\ncat >/var/lib/users\n"), 0o755)
	const hidden = "/run/user/0/dcol" // the unit does not see it
	w.run(bob, "mkdir", "-p", "/run/user/0")
	w.run(bob, "cp", program, hidden)
	said := w.try(bob, "env", "PATH=/var/lib/bin:/usr/sbin:/usr/bin:/sbin:/bin", hidden, "init", "friends")
	w.mustFailAfter(said, "friends is created", "systemd cannot run the agent from "+hidden, "install dcol (sudo make install)")

	w.run(bob, "cp", program, "/var/lib/bin/dcol")
	w.says(w.try(bob, "env", "PATH=/var/lib/bin:/usr/sbin:/usr/bin:/sbin:/bin", "/var/lib/bin/dcol", "init", "friends"),
		"The collective friends exists already; this host is its member bob.", "The agent runs, and will after each boot", "ok     member: connected to the coordinator bob")
	if asked := w.run(bob, "cat", "/var/lib/asked"); asked != "cat dcol.service\ncat dcol.service\ndaemon-reload\nsystemd-sysusers -\nenable --now dcol.service\n" {
		t.Errorf("systemd was asked:\n%s", asked)
	}
	if users := w.run(bob, "cat", "/var/lib/users"); !strings.Contains(users, "\nu dcol ") {
		t.Errorf("the users to make:\n%s", users)
	}
	if unit := w.run(bob, "cat", "/etc/systemd/system/dcol.service"); !strings.Contains(unit, "\nExecStart=/var/lib/bin/dcol agent\n") {
		t.Errorf("the unit:\n%s", unit)
	}
}

// mustFailAfter checks that a command failed after it had printed stdout.
func (w *world) mustFailAfter(r result, stdout string, words ...string) {
	w.Helper()
	if !strings.Contains(r.stdout, stdout) {
		w.Errorf("stdout does not say %q\n%v", stdout, r)
	}
	r.stdout = ""
	w.mustFail(r, words...)
}

// endAgent ends an agent that dcol itself has started.
func (w *world) endAgent(host, signal string) {
	w.Helper()
	w.run(host, "sh", "-ec", fmt.Sprintf("kill -%s %d", signal, w.agentOf(host)))
	w.eventually("the agent of "+host+" has ended", func() error { return holds(w.agentOf(host) == 0, "it runs") })
}

// agentOf returns the process of a host's agent; 0: none runs.
func (w *world) agentOf(host string) (pid int) {
	w.Helper()
	err := w.host(host).Do(func() error {
		processes, err := filepath.Glob("/proc/[0-9]*/cmdline") // the host's own
		for _, path := range processes {
			line, readErr := os.ReadFile(path)
			if words := strings.Split(string(line), "\x00"); readErr == nil && len(words) > 1 && words[1] == "agent" {
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

// serves reports whether bob has sessions of a member, or not, as it should be.
func (w *world) serves(member string, want bool) error {
	w.Helper()
	all := w.mustStatus(bob).Serving.Members
	has := slices.ContainsFunc(all, func(m api.Served) bool { return m.Member == member && m.Sessions > 0 })
	return holds(has == want, "bob serves %+v", all)
}
