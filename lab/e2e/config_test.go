package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An agent that cannot start explains why, and changes nothing.
func TestAgentThatCannotStart(t *testing.T) {
	w := newWorld(t)
	w.found("collective", alice, bob)
	w.found("others", alice)
	good := clientConfig("", w.addr4(bob).String())
	with := func(was, is string) func() {
		return func() {
			changed := strings.Replace(good, was, is, 1)
			if changed == good {
				t.Fatalf("the configuration has no %q", was)
			}
			w.configure(alice, changed)
		}
	}
	cases := []struct {
		name   string
		breaks func()
		words  []string
	}{
		{"unknown key", with("[client]\n", "[client]\nsubflow = 3\n"), []string{"dcol.toml:", "subflow", `did you mean "subflows"`}},
		{"bad value", with("[client]\n", "[client]\nsubflows = 99\n"), []string{"dcol.toml:", "client.subflows", "99", "1 to 8"}},
		{"wrong kind of value", with("exclude = []", `exclude = "none"`), []string{"dcol.toml:", "exclude"}},
		{"no TOML", with("[client]", "[client"), []string{"dcol.toml:"}},
		{"no address", with(w.addr4(bob).String(), "bob.example"), []string{"dcol.toml:", "bob.example"}},
		{"no configuration", func() { w.run(alice, "rm", etc+"dcol.toml") }, []string{"there is no configuration at", "dcol agent --sample"}},
		{"no key", func() { w.run(alice, "rm", etc+"alice.key") }, []string{"alice.key", "dcol ca issue"}},
		{"key of another certificate", func() { w.run(alice, "cp", "-p", w.caDir("collective")+"/bob.key", etc+"alice.key") },
			[]string{"alice.key", "not the key of", "alice.crt", "copy both files of the same certificate"}},
		{"key that others may read", func() { w.run(alice, "chmod", "644", etc+"alice.key") }, []string{"alice.key", "chmod"}},
		{"certificate of another member", func() {
			w.run(alice, "cp", w.caDir("collective")+"/bob.crt", etc+"alice.crt")
			w.run(alice, "cp", "-p", w.caDir("collective")+"/bob.key", etc+"alice.key")
		}, []string{`"alice"`, `"bob"`, "correct one of them"}},
		{"certificate of another collective", func() { w.carry("others", alice, "alice.crt", "alice.key") },
			[]string{"alice.crt", "not signed under", "ca.crt", "from the same authority"}},
		{"damaged certificate", func() { w.write(alice, etc+"alice.crt", []byte("-----BEGIN"), 0o644) }, []string{"alice.crt", "dcol ca issue"}},
		{"no revocation list", func() { w.run(alice, "rm", etc+"ca.crl") }, []string{"ca.crl", "copy ca.crl"}},
		{"revoked certificate", func() {
			w.dcol(server, "ca", "revoke", alice, "--dir", w.caDir("collective"))
			w.carry("collective", alice, "ca.crl")
			w.dcol(server, "ca", "issue", alice, "--reissue", "--dir", w.caDir("collective"))
		}, []string{"alice.crt", "revo", "--reissue alice"}},
		{"expired certificate", func() {
			w.dcol(server, "ca", "issue", alice, "--reissue", "--valid", "1s", "--dir", w.caDir("collective"))
			w.carry("collective", alice, "alice.crt", "alice.key")
			time.Sleep(1100 * time.Millisecond)
		}, []string{"alice.crt", "expired on", "--reissue alice", "clock"}},
		{"MPTCP switched off", func() {
			w.dcol(server, "ca", "issue", alice, "--reissue", "--dir", w.caDir("collective"))
			w.sysctl(alice, "net.mptcp.enabled", "0")
		}, []string{"MPTCP is switched off", "sysctl -w net.mptcp.enabled=1"}},
		// The last one is good, so that the others fail for their own reasons.
		{"", func() {}, nil},
	}
	for _, c := range cases {
		w.identify("collective", alice)
		w.configure(alice, good)
		w.sysctl(alice, "net.mptcp.enabled", "1")
		c.breaks()
		if c.name == "MPTCP switched off" {
			w.identify("collective", alice)
		}
		if c.words == nil {
			w.dcol(alice, "agent", "--check")
			continue
		}
		t.Log(c.name)
		w.fails(alice, []string{"agent"}, c.words...)
		if pm := w.pathManager(alice); pm != "kernel" {
			t.Errorf("%s: new sockets are left to a path manager in %s", c.name, pm)
		}
		if left := strings.Fields(w.run(alice, "ls", "/var/lib/dcol")); len(left) != 0 {
			t.Errorf("%s: left in /var/lib/dcol: %q", c.name, left)
		}
	}
}

// Every command that needs root reports it to other users.
func TestWithoutRoot(t *testing.T) {
	w := newWorld(t)
	standard(w)
	w.start(alice)
	// The key belongs to root. A user with a copy of the files gets further, and is then told to use root.
	own := filepath.Join(w.dir, "own")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	for _, name := range []string{"alice.crt", "alice.key", "ca.crt", "ca.crl"} {
		data, err := w.read(alice, etc+name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(own, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(own, name), nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(own, "dcol.toml")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(clientConfig("", w.addr4(bob).String()), etc, own+"/")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(config, 0o644); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	for dir := own; dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) { // TempDir is root's alone
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	as := func(host string, args ...string) result {
		cmd := w.host(host).Command(t.Context(), program, args...)
		cmd.Dir = "/" // our own may be where only root can go
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return w.finish(cmd)
	}
	w.mustFail(as(alice, "agent"), "alice.key", "permission denied")
	w.mustFail(as(alice, "agent", "--config", config), "needs root", "start it as root")
	w.mustFail(as(alice, "status"), "run this as root")
	w.mustFail(as(alice, "map", w.addr4(server).String()+":80", "--via", bob), "run this as root")
	w.mustFail(as(mallory, "down"), "root")
	// What is right, but not to be seen by him, is not called amiss.
	switch r := as(alice, "doctor"); {
	case r.code != 0, strings.Contains(r.stdout, "does not run"), strings.Contains(r.stdout, "pm_type=0"):
		t.Errorf("the doctor without root: %v", r)
	case !strings.Contains(r.stdout, "sudo dcol doctor"):
		t.Errorf("the doctor does not say that it needs root: %v", r)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().Perm() != 0o666 {
		t.Skipf("the rest needs a %s that everybody may use; this machine's has mode %v", os.DevNull, info.Mode())
	}
	// Running programs needs no rights.
	if r := as(alice, "run", "--", "curl", "--silent", "--fail", "--output", "/dev/null", "--write-out", "%{size_download}", w.url()); r.stdout != fmt.Sprint(fileSize) {
		t.Errorf("%v", r)
	}
}

// A waypoint that cannot start has not made its host a router, either.
func TestWaypointThatCannotStart(t *testing.T) {
	w := standard(newWorld(t))
	untouched := w.sysctls(bob)
	unchanged := func() {
		t.Helper()
		w.sameSysctls(bob, untouched)
		if rules := w.run(bob, "nft", "list", "ruleset"); rules != "" {
			t.Errorf("an agent that could not start leaves\n%s", rules)
		}
	}
	taken := w.occupy(bob, 45672)
	waiting := w.start(bob)
	if ports := w.mustStatus(bob).TakenPorts; len(ports) != 1 || ports[0].Network != "udp" || ports[0].Port != 45672 {
		t.Errorf("taken ports are %+v", ports)
	}
	unchanged()
	waiting.stop()
	unchanged()
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	w.configure(bob, waypointConfig("allow = [\"127.0.0.0/8\"]\n"))
	w.fails(bob, []string{"agent", "--check"}, "allow 127.0.0.0/8", "never forwards to loopback", "remove it from the list")
	w.fails(bob, []string{"agent"}, "allow 127.0.0.0/8")
	unchanged()
	w.configure(bob, strings.Replace(waypointConfig(labAllowed), `["waypoint"]`, `["client", "waypoint"]`, 1))
	w.sysctl(bob, "net.mptcp.enabled", "0")
	w.fails(bob, []string{"agent"}, "sysctl -w net.mptcp.enabled=1")
	w.sysctl(bob, "net.mptcp.enabled", "1")
	unchanged()
	w.start(bob)
}

// One agent a host.
func TestTwoAgentsOnOneHost(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	before := w.detoured()
	for _, host := range []string{alice, bob} {
		stop := fmt.Sprintf("stop it first (kill %d)", w.agentOf(host))
		w.fails(host, []string{"agent"}, "another agent runs on this host", stop)
	}
	x.goesOn()
	w.unchanged(before)
	w.mustStatus(bob)
	x.endsWell()
}
