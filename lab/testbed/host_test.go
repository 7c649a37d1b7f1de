package testbed

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pair is two hosts and a link.
func pair(backend string, p LinkParams) Spec {
	return Spec{
		Hosts:   []HostSpec{{Name: "left"}, {Name: "right"}},
		Links:   []LinkSpec{{Name: "line", A: "left", B: "right", AtoB: p, BtoA: p}},
		Backend: backend,
	}
}

func TestSubflowLimit(t *testing.T) {
	spec := pair(BackendVeth, LinkParams{})
	spec.Hosts[1].Subflows = new(5)
	n := build(t, spec)
	for _, test := range []struct{ host, want string }{{"left", "subflows 2"}, {"right", "subflows 5"}} {
		if got := run(t, n.Host(test.host), "ip", "mptcp", "limits"); !strings.Contains(got, test.want) {
			t.Errorf("%s has %q, want %s", test.host, got, test.want)
		}
	}
}

func TestHostsHaveTheirOwnView(t *testing.T) {
	n := build(t, pair(BackendVeth, LinkParams{}))
	left, right := n.Host("left"), n.Host("right")
	tests := []struct {
		command []string
		want    string
	}{
		{[]string{"hostname"}, "left"},
		{[]string{"cat", "/etc/hostname"}, "left"},
		{[]string{"ls", "/sys/class/net"}, "line\nlo"},
		{[]string{"sh", "-c", "ls /proc | grep -cx 1"}, "1"},
		{[]string{"sh", "-c", "ls /run /etc/dcol /var/lib/dcol /var/log/dcol"},
			"/etc/dcol:\n\n/run:\n\n/var/lib/dcol:\n\n/var/log/dcol:"},
		{[]string{"getent", "ahostsv4", "right"}, "10.0.1.2        STREAM right\n10.0.1.2        DGRAM  \n10.0.1.2        RAW"},
		{[]string{"getent", "ahostsv6", "right"}, "fd00::1:2       STREAM right\nfd00::1:2       DGRAM  \nfd00::1:2       RAW"},
		{[]string{"cat", "/etc/resolv.conf"}, ""},
		{[]string{"cat", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/line/rp_filter"}, "0\n0"},
		{[]string{"cat", "/proc/sys/net/ipv4/tcp_no_metrics_save"}, "1"},
		{[]string{"cat", "/proc/sys/net/ipv4/tcp_ehash_entries"}, connectionBuckets}, // negative: shared
	}
	for _, test := range tests {
		if got := run(t, left, test.command...); got != test.want {
			t.Errorf("%q prints %q, want %q", test.command, got, test.want)
		}
	}
	// What one writes, neither the other nor the machine sees.
	files := []string{"/etc/dcol/x", "/etc/testbed-x", "/var/log/testbed-x", "/var/lib/testbed-x", "/run/testbed-x"}
	for _, file := range files {
		run(t, left, "sh", "-c", "echo mine > "+file)
		if out, err := right.Command(t.Context(), "cat", file).CombinedOutput(); err == nil {
			t.Errorf("the other host reads %q in %s", out, file)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is on the machine", file)
		}
		if got := run(t, left, "cat", file); got != "mine" {
			t.Errorf("%s reads %q where it was written", file, got)
		}
	}
	if left.Addr4().String() != "10.0.1.1" || right.Addr6().String() != "fd00::1:2" || left.Interface("line") != "line" {
		t.Errorf("addresses are %v and %v, the interface %q", left.Addr4(), right.Addr6(), left.Interface("line"))
	}
	if n.Host("nobody") != nil {
		t.Error("there is a host nobody declared")
	}
}

func TestCommandIsAnExecCmd(t *testing.T) {
	n := build(t, pair(BackendVeth, LinkParams{}))
	h := n.Host("left")

	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, h, "pwd"); got != wd {
		t.Errorf("runs in %s, want the caller's %s", got, wd)
	}
	c := h.Command(t.Context(), "cat")
	c.Stdin = strings.NewReader("in and out")
	if out, err := c.Output(); err != nil || string(out) != "in and out" {
		t.Errorf("cat printed %q, %v", out, err)
	}
	_, err = h.Command(t.Context(), "sh", "-c", "echo no >&2; exit 3").Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || string(exit.Stderr) != "no\n" {
		t.Errorf("a failing command gives %v", err)
	}
	if err := h.Command(t.Context(), "testbed-no-such-program").Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a missing program gives %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c = h.Command(ctx, "sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := c.Wait(); err == nil {
		t.Error("a cancelled command ended well")
	}
	c = h.Command(t.Context(), "sh", "-c", "echo $0", "piped")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "piped\n" {
		t.Errorf("the pipe has %q, %v", buf[:n], err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// TestShellOnATerminal has script(1) give a shell a terminal: it must be able
// to control jobs, as people expect of `dcol-lab shell`.
func TestShellOnATerminal(t *testing.T) {
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("needs script(1)")
	}
	n := build(t, pair(BackendVeth, LinkParams{}))
	got := run(t, n.Host("left"), "script", "-qec", "bash --norc -ic 'set -m; sleep 0 & wait; echo on $(hostname) at $(tty)'", "/dev/null")
	if !strings.Contains(got, "on left at /dev/pts/") || strings.Contains(got, "no job control") {
		t.Errorf("the shell says %q", got)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	needRoot(t)
	n := build(t, pair(BackendEmulator, LinkParams{}))
	h := n.Host("left")
	waited := h.Command(context.Background(), "sleep", "1000")
	forgotten := h.Command(context.Background(), "sleep", "1000")
	for _, c := range []*Cmd{waited, forgotten} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	run(t, h, "setsid", "-f", "sh", "-c", "exec >/dev/null 2>&1; sleep 1000 & sleep 1000")
	result := make(chan error)
	go func() { result <- waited.Wait() }()

	start := time.Now()
	if err := n.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("close took %v: something did not end by itself", took)
	}
	if err := <-result; err == nil {
		t.Error("a command outlived its host")
	}
	if err := n.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	for what, err := range map[string]error{
		"Do":       h.Do(func() error { return nil }),
		"Start":    h.Command(t.Context(), "true").Start(),
		"LinkDown": n.LinkDown("line", true), "ResetStats": n.ResetStats(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

func TestSysctl(t *testing.T) {
	n := build(t, pair(BackendVeth, LinkParams{}))
	h := n.Host("left")
	for _, key := range []string{"net.ipv4.ip_default_ttl", "net/ipv4/ip_default_ttl"} {
		if err := h.Sysctl(key, "33"); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if got := run(t, h, "cat", "/proc/sys/net/ipv4/ip_default_ttl"); got != "33" {
		t.Errorf("it is %s", got)
	}
	if got, _ := os.ReadFile("/proc/sys/net/ipv4/ip_default_ttl"); strings.TrimSpace(string(got)) == "33" {
		t.Error("it is set on the machine")
	}
	if err := h.Sysctl("net.ipv4.no_such_thing", "1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an unknown one gives %v", err)
	}
}

// TestZombiesAreReaped makes orphans that end: init is their parent then.
func TestZombiesAreReaped(t *testing.T) {
	n := build(t, pair(BackendVeth, LinkParams{}))
	h := n.Host("left")
	run(t, h, "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (sh -c 'sleep 0.05' & ); done")
	deadline := time.Now().Add(10 * time.Second)
	for {
		left := run(t, h, "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null | grep -c -e '(sleep)' -e ') Z' || true")
		if left == "0" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s are left", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestBuildThatFailsLeavesNothing asks for what only the kernel refuses.
func TestBuildThatFailsLeavesNothing(t *testing.T) {
	needRoot(t)
	s := pair(BackendEmulator, LinkParams{})
	s.Links[0].Name = "in valid"
	if _, err := Build(t.Context(), s, discard); err == nil || !strings.Contains(err.Error(), `"in valid"`) {
		t.Errorf("a bad name gives %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Build(ctx, pair(BackendEmulator, LinkParams{}), discard); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled build gives %v", err)
	}
	inits, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range inits {
		if children, _ := os.ReadFile(list); len(children) > 0 {
			t.Errorf("processes %s are left", children)
		}
	}
}
