package e2e

import (
	"cmp"
	"fmt"
	"net/netip"
	neturl "net/url"
	"strings"
	"testing"
)

// capturing is converting with a cgroup on alice whose programs are converted without dcol run.
func capturing(t *testing.T, use string) (w *world, group string) {
	t.Helper()
	group = newCgroup(t)
	w = plainWorld(t)
	w.convert(use, fmt.Sprintf("capture = %q\nexclude_ports = [81]\n", group))
	return w, group
}

// into returns a command that runs another one in a cgroup; empty: where it is.
func into(group string, argv ...string) []string {
	if group == "" {
		return argv
	}
	return append([]string{"sh", "-c", `echo 0 > "$0/cgroup.procs" && exec "$@"`, group}, argv...)
}

// inGroup begins a download by a program of a cgroup.
func (w *world) inGroup(group string, argv ...string) *transfer {
	w.Helper()
	return w.transfer(alice, into(group, argv...)...)
}

// byPlainCurl begins a download by an unmodified curl, whose sockets are TCP.
func (w *world) byPlainCurl(group, url string) *transfer {
	w.Helper()
	return w.inGroup(group, "curl", "--silent", "--show-error", "--fail", "--no-buffer", url)
}

// goes reports whether a program's connection is converted: then its own address is on loopback. In any case, its peer
// is the server.
func (w *world) goes(group, url string) (converted bool) {
	w.Helper()
	return w.goesFrom(alice, group, url)
}

func (w *world) goesFrom(host, group, url string) (converted bool) {
	w.Helper()
	r := w.look(host, group, url)
	if r.code != 0 {
		w.Fatalf("on %s: %v", host, r)
	}
	return w.looped(r, url)
}

// look makes a connection and prints its addresses.
func (w *world) look(host, group, url string) result {
	w.Helper()
	return w.try(host, into(group, "curl", "--silent", "--show-error", "--head", "--output", "/dev/null",
		"--write-out", "%{local_ip} %{remote_ip} %{remote_port}", url)...)
}

// goesDirectly waits until a program's connection is not converted any more. The kernel ends a process step by step, so a
// connection to the listener of a relay that is being killed may be refused.
func (w *world) goesDirectly(group, url string) {
	w.Helper()
	w.eventually("connections go directly", func() error {
		r := w.look(alice, group, url)
		return holds(r.code == 0 && !w.looped(r, url), "they do not: %v", r)
	})
}

// looped reports whether a connection's own address is on loopback.
func (w *world) looped(r result, url string) bool {
	w.Helper()
	said := strings.Fields(r.stdout)
	to, err := neturl.Parse(url)
	if err != nil {
		w.Fatal(err)
	}
	if len(said) != 3 || said[1] != to.Hostname() || said[2] != cmp.Or(to.Port(), "80") {
		w.Fatalf("the addresses and the port of a connection to %s are %q", url, said)
	}
	return netip.MustParseAddr(said[0]).IsLoopback()
}

// captures waits until programs' connections are converted.
func (w *world) captures(group string) {
	w.Helper()
	w.eventually("programs' connections are converted", func() error {
		return holds(w.goes(group, w.url()), "they are not: %q", w.mustStatus(alice).Problems)
	})
}

// An unmodified program reaches a server without MPTCP over two paths, and sees the server as its peer. Its connection
// survives the death of a path and of the agent. New connections go directly then, at once, and also when the relay is
// killed.
func TestCapture(t *testing.T) {
	w, group := capturing(t, "always")
	w.captures(group)
	x := w.byPlainCurl(group, w.url())
	w.throughConverter()
	x.goesOn()
	w.link(mallory, true)
	x.goesOn()
	w.link(mallory, false)
	port81 := strings.Replace(w.url(), "/file", ":81/file", 1)
	for url, want := range map[string]bool{w.url(): true, w.url6(80): true, port81: false} {
		if w.goes(group, url) != want {
			t.Errorf("to %s: converted is %v", url, !want)
		}
	}
	w.inGroup(group, "python3", "-c", blockingFetch, w.addr4(server).String()).isIntact()
	w.byPlainCurl(group, w.url6(80)).isIntact()

	w.endAgent(alice, "KILL")
	w.goesDirectly(group, w.url())
	w.goesDirectly(group, w.url6(80))
	w.byPlainCurl(group, w.url()).isIntact()
	x.goesOn()
	w.start(alice)
	w.captures(group)
	x.endsWell()

	w.endAgent(alice, "KILL")
	w.run(alice, "kill", "-9", fmt.Sprint(w.relayOf(alice)))
	w.goesDirectly(group, w.url())
	w.goesDirectly(group, w.url6(80))
	w.start(alice)
	w.captures(group)
	w.dcol(alice, "down")
	if w.goes(group, w.url()) {
		t.Error("a connection is converted after dcol down")
	}
}

// In auto, a plain connection goes directly until an MPTCP connection has shown that the server speaks no MPTCP.
func TestCaptureAuto(t *testing.T) {
	w, group := capturing(t, "auto")
	if w.goes(group, w.url()) {
		t.Error("a connection is converted to a server of which nothing is known")
	}
	x := w.curl(w.url())
	x.goesOn()
	w.captures(group)
	if w.goes(group, w.url6(80)) {
		t.Error("a connection is converted to an address of which nothing is known")
	}
	x.endsWell()
	w.dcol(alice, "convert", "never")
	w.goesDirectly(group, w.url())
	w.byPlainCurl(group, w.url()).isIntact()
}

// With capture = "host", programs in any cgroup of the host are converted, but for those of excluded cgroups, and nobody
// in another network namespace. The agent's own connections are its own.
func TestCaptureHost(t *testing.T) {
	group, spared := newCgroup(t), newCgroup(t)
	w := plainWorld(t)
	w.convert("always", fmt.Sprintf("capture = \"host\"\nexclude_cgroups = [%q]\nexclude_ports = [81]\n", spared))
	w.captures("")
	w.captures(group)
	port81 := strings.Replace(w.url(), "/file", ":81/file", 1)
	for _, c := range []struct {
		host, group, url string
		want             bool
	}{
		{alice, "", w.url6(80), true}, {alice, "", port81, false}, {alice, spared, w.url(), false},
		{mallory, "", w.url(), false}, {mallory, group, w.url(), false},
	} {
		if got := w.goesFrom(c.host, c.group, c.url); got != c.want {
			t.Errorf("from %s in %q to %s: converted is %v", c.host, c.group, c.url, got)
		}
	}
	x := w.byPlainCurl("", w.url())
	w.throughConverter()
	x.goesOn()
	w.endAgent(alice, "KILL")
	w.goesDirectly("", w.url())
	x.goesOn()
	w.start(alice)
	w.captures("")
	x.endsWell()
	w.dcol(alice, "down")
	if w.goes("", w.url()) {
		t.Error("a connection is converted after dcol down")
	}
}
