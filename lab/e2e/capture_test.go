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
	w = newWorld(t)
	w.sysctl(server, "net.mptcp.enabled", "0")
	w.convert(use, fmt.Sprintf("capture = %q\nexclude_ports = [81]\n", group))
	return w, group
}

// inGroup begins a download by a program of a cgroup.
func (w *world) inGroup(group string, argv ...string) *transfer {
	w.Helper()
	return w.transfer(alice, append([]string{"sh", "-c", `echo 0 > "$0/cgroup.procs" && exec "$@"`, group}, argv...)...)
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
	const look = `echo 0 > "$0/cgroup.procs" && exec curl --silent --show-error --head --output /dev/null --write-out '%{local_ip} %{remote_ip} %{remote_port}' "$1"`
	said := strings.Fields(w.run(alice, "sh", "-c", look, group, url))
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
	if w.goes(group, w.url()) || w.goes(group, w.url6(80)) {
		t.Error("a connection is converted without an agent")
	}
	w.byPlainCurl(group, w.url()).isIntact()
	x.goesOn()
	w.start(alice)
	w.captures(group)
	x.endsWell()

	w.endAgent(alice, "KILL")
	w.run(alice, "kill", "-9", fmt.Sprint(w.relayOf(alice)))
	if w.goes(group, w.url()) || w.goes(group, w.url6(80)) {
		t.Error("a connection is converted without a relay")
	}
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
	w.eventually("connections go directly again", func() error { return holds(!w.goes(group, w.url()), "they do not") })
	w.byPlainCurl(group, w.url()).isIntact()
}
