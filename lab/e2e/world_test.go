package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// The hosts: alice is the client, bob the waypoint, mallory a stranger. All
// hang on one router, each by a link of its own name.
const (
	alice   = "alice"
	bob     = "bob"
	mallory = "mallory"
	server  = "server"
	router  = "router"
)

// patience limits how long something may take that should come at once, on a busy machine.
var patience = time.Duration(40*slowness()) * time.Second

func slowness() int {
	if factor, err := strconv.Atoi(os.Getenv("DCOL_TEST_PATIENCE")); err == nil {
		return factor
	}
	return 1
}

// world is one network with its collective.
type world struct {
	*testing.T
	net    *testbed.Network
	dir    string // seen by all hosts
	agents []*agent

	commandOnce sync.Once // compares alice's status with that of the command
	explained   bool
}

// newWorld builds a network whose links are as fast as the kernel.
func newWorld(t *testing.T) *world { t.Helper(); return newWorldOn(t, testbed.BackendVeth) }

// plainWorld is newWorld with a server that speaks plain TCP. That holds for sockets that are opened later, such as the web
// server's.
func plainWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.sysctl(server, "net.mptcp.enabled", "0")
	return w
}

func newWorldOn(t *testing.T, backend string) *world {
	t.Helper()
	return newWorldWith(t, func(s *testbed.Spec) { s.Backend = backend })
}

// newWorldWith is newWorld with something changed.
func newWorldWith(t *testing.T, change func(*testbed.Spec)) *world {
	t.Helper()
	t.Parallel()
	if cannot != "" {
		t.Skip(cannot)
	}
	spec := testbed.Spec{Backend: testbed.BackendVeth, Hosts: []testbed.HostSpec{{Name: router, Forward: true}}}
	for _, name := range []string{alice, bob, mallory, server} {
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: name})
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: name, A: name, B: router})
	}
	change(&spec)
	w := &world{T: t, dir: t.TempDir()}
	network, err := testbed.Build(t.Context(), spec, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.net = network
	t.Cleanup(func() {
		w.explain()
		if err := network.Close(); err != nil {
			t.Error(err)
		}
		w.checkRaces()
	})
	// Not the machine's own limits: little shall be under way at any time. With much
	// less than this, kernels stall whatever dcol does.
	w.sysctl(alice, "net.ipv4.tcp_rmem", "4096 131072 6291456")
	w.sysctl(server, "net.ipv4.tcp_wmem", "4096 16384 4194304")
	return w
}

// life is that of programs that end with the network, not before explain.
func (w *world) life() context.Context { return context.WithoutCancel(w.Context()) }

func (w *world) host(name string) *testbed.Host { return w.net.Host(name) }

func (w *world) addr4(host string) netip.Addr { return w.host(host).Addr4() }
func (w *world) addr6(host string) netip.Addr { return w.host(host).Addr6() }

func (w *world) sysctl(host, key, value string) {
	w.Helper()
	if err := w.host(host).Sysctl(key, value); err != nil {
		w.Fatal(err)
	}
}

// write puts a file on one host only, if it is in /etc/dcol, /var/lib or /var/log.
func (w *world) write(host, path string, data []byte, mode os.FileMode) {
	w.Helper()
	err := w.host(host).Do(func() error {
		// Replaced in one step, as a careful user does.
		if err := os.WriteFile(path+".new", data, mode); err != nil {
			return err
		}
		if err := os.Chmod(path+".new", mode); err != nil { // whatever the umask is
			return err
		}
		return os.Rename(path+".new", path)
	})
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) read(host, path string) (data []byte, err error) {
	err = w.host(host).Do(func() error {
		data, err = os.ReadFile(path)
		return err
	})
	return data, err
}

// result is the output of a command.
type result struct {
	command        string
	stdout, stderr string
	code           int
}

func (r result) String() string {
	return fmt.Sprintf("%s: exit code %d\nstdout: %s\nstderr: %s", r.command, r.code, r.stdout, r.stderr)
}

// try runs a command on a host, whatever comes of it.
func (w *world) try(host string, argv ...string) result {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	return w.finish(w.host(host).Command(ctx, argv[0], argv[1:]...))
}

func (w *world) finish(cmd *testbed.Cmd) result {
	w.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := result{command: strings.Join(cmd.Args, " "), stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	case err != nil:
		w.Fatalf("%v: %v", cmd.Args, err)
	}
	return r
}

// run runs a command on a host that must go well, and returns its stdout.
func (w *world) run(host string, argv ...string) string {
	w.Helper()
	r := w.try(host, argv...)
	if r.code != 0 {
		w.Fatalf("on %s: %v", host, r)
	}
	return r.stdout
}

// dcol runs a dcol command that must go well.
func (w *world) dcol(host string, args ...string) string {
	w.Helper()
	return w.run(host, append([]string{program}, args...)...)
}

// fails runs a dcol command that must fail as docs/cli.md says, with all these
// words in its error.
func (w *world) fails(host string, args []string, words ...string) {
	w.Helper()
	w.mustFail(w.try(host, append([]string{program}, args...)...), words...)
}

func (w *world) mustFail(r result, words ...string) {
	w.Helper()
	if r.code != 1 || !strings.HasPrefix(lastLines(r.stderr), "error: ") || r.stdout != "" {
		w.Errorf("want exit code 1, nothing on stdout and a line that begins with error:\n%v", r)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			w.Errorf("the error does not say %q\n%v", word, r)
		}
	}
}

// lastLines returns the text after the log lines.
func lastLines(text string) string {
	if i := strings.LastIndex(text, "\nerror: "); i >= 0 {
		return text[i+1:]
	}
	return text
}

// eventually polls a condition until it returns nil, often at first.
func (w *world) eventually(what string, condition func() error) {
	w.Helper()
	w.within(patience, what, condition)
}

func (w *world) within(limit time.Duration, what string, condition func() error) {
	w.Helper()
	const shortest, longest = 10 * time.Millisecond, 100 * time.Millisecond
	for began := time.Now(); ; time.Sleep(min(max(time.Since(began)/4, shortest), longest)) {
		err := condition()
		if err == nil {
			w.Logf("%s: after %v", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(began) > limit {
			w.Fatalf("%s: not after %v: %v", what, limit, err)
		}
	}
}

// cut stops the direct path between alice and the server, and nothing else;
// mend ends that.
func (w *world) cut() { w.Helper(); w.cutFrom(w.addr4(alice).String()) }

// cutFrom is cut for an alice that has that IPv4 address.
func (w *world) cutFrom(addr string) {
	w.Helper()
	rules := fmt.Sprintf(`table inet cut {
		chain forward {
			type filter hook forward priority 0
			ip saddr %[1]s ip daddr %[2]v drop
			ip saddr %[2]v ip daddr %[1]s drop
			ip6 saddr %[3]v ip6 daddr %[4]v drop
			ip6 saddr %[4]v ip6 daddr %[3]v drop
		}
	}`, addr, w.addr4(server), w.addr6(alice), w.addr6(server))
	w.run(router, "nft", rules)
}

func (w *world) mend() { w.Helper(); w.run(router, "nft", "delete table inet cut") }

func (w *world) link(name string, down bool) {
	w.Helper()
	if err := w.net.LinkDown(name, down); err != nil {
		w.Fatal(err)
	}
}

// explain shows, after a failure, what the agents said and see, as soon as the
// test is over and while everything still runs.
func (w *world) explain() {
	if !w.Failed() || w.explained {
		return
	}
	w.explained = true
	for _, a := range w.agents {
		data, err := os.ReadFile(a.log)
		if err != nil {
			data = []byte(err.Error())
		}
		lines := strings.Split(string(data), "\n")
		if len(lines) > 120 {
			lines = append([]string{"…"}, lines[len(lines)-120:]...)
		}
		w.Logf("agent of %s (%s):\n%s", a.host, filepath.Base(a.log), strings.Join(lines, "\n"))
	}
	for _, show := range [][]string{
		{alice, program, "status", "--json"}, {bob, program, "status"}, {bob, "nft", "list", "ruleset"},
		{alice, "ss", "-tniM"}, {alice, "ip", "addr"},
	} {
		cmd := w.host(show[0]).Command(context.Background(), show[1], show[2:]...)
		out, _ := cmd.CombinedOutput()
		w.Logf("on %s: %s\n%s", show[0], strings.Join(show[1:], " "), out)
	}
}

// showSockets logs the TCP and MPTCP sockets of all hosts, with what waits in each.
func (w *world) showSockets() {
	w.Helper()
	for _, name := range []string{phone, alice, bob, mallory, server} {
		h := w.host(name)
		if h == nil {
			continue
		}
		out, err := h.Command(w.life(), "ss", "-tniM").CombinedOutput()
		w.Logf("on %s: ss -tniM (%v)\n%s", h.Name(), err, out)
	}
}

// checkRaces finds what dcol, built with the race detector, said about itself.
func (w *world) checkRaces() {
	logs, err := filepath.Glob(filepath.Join(w.dir, "*.log"))
	if err != nil {
		w.Error(err)
	}
	for _, name := range logs {
		data, err := os.ReadFile(name)
		if err != nil {
			w.Error(err)
		}
		for _, sign := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: "} {
			if i := bytes.Index(data, []byte(sign)); i >= 0 {
				w.Errorf("%s: %s", filepath.Base(name), data[i:min(len(data), i+4000)])
			}
		}
	}
}
