package mptcpify

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// probeLines returns what testdata/probe.c prints if nothing is wrong.
func probeLines(protocol, uid int) string {
	var b strings.Builder
	line := func(name string, protocol, closeOnExec, nonblock int) {
		fmt.Fprintf(&b, "%s %d %d %d %d home\n", name, protocol, closeOnExec, nonblock, uid)
	}
	line("tcp4", protocol, 0, 0)
	line("tcp4-named", protocol, 0, 0)
	line("tcp4-cloexec", protocol, 1, 0)
	line("tcp4-nonblock", protocol, 0, 1)
	line("tcp4-both", protocol, 1, 1)
	line("tcp6", protocol, 0, 0)
	line("udp4", unix.IPPROTO_UDP, 0, 0)
	line("udp6", unix.IPPROTO_UDP, 0, 0)
	line("unix", 0, 0, 0)
	fmt.Fprintf(&b, "bad-type error %d\n", syscall.EINVAL)
	line("mptcp", unix.IPPROTO_MPTCP, 0, 0)
	line("thread", protocol, 0, 0)
	line("child", protocol, 0, 0)
	return b.String()
}

// needMPTCP skips where no way of making sockets could succeed.
func needMPTCP(t testing.TB) {
	t.Helper()
	if err := kernelHasMPTCP(); err != nil {
		t.Skipf("this kernel gives no MPTCP sockets: %v", err)
	}
}

func wantProbe(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	got := end(t, cmd)
	if got.code != 0 || got.stderr != "" {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
	if diff := cmp.Diff(want, got.stdout); diff != "" {
		t.Errorf("sockets (-want +got):\n%s", diff)
	}
}

func TestSockets(t *testing.T) {
	needMPTCP(t)
	uid := os.Geteuid()
	for _, c := range []struct {
		name  string
		probe func(testing.TB) string
	}{{"dynamic", dynamicProbe}, {"static", staticProbe}} {
		t.Run(c.name, func(t *testing.T) {
			probe := c.probe(t)
			wantProbe(t, exec.Command(probe), probeLines(unix.IPPROTO_TCP, uid))
			wantProbe(t, run(t, probe), probeLines(unix.IPPROTO_MPTCP, uid))
		})
	}
	probe := dynamicProbe(t)
	t.Run("in a pipeline", func(t *testing.T) {
		wantProbe(t, run(t, "sh", "-c", probe+" | cat"), probeLines(unix.IPPROTO_MPTCP, uid))
	})
	t.Run("by a script without a #! line", func(t *testing.T) {
		script := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(script, []byte("exec $1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		wantProbe(t, run(t, script, probe), probeLines(unix.IPPROTO_MPTCP, uid))
	})
	t.Run("nested", func(t *testing.T) {
		inner := run(t, probe)
		wantProbe(t, run(t, inner.Args...), probeLines(unix.IPPROTO_MPTCP, uid))
	})
	t.Run("two at once", func(t *testing.T) {
		for range 2 {
			t.Run("one", func(t *testing.T) {
				t.Parallel()
				wantProbe(t, run(t, probe), probeLines(unix.IPPROTO_MPTCP, uid))
			})
		}
	})
}

func TestUsers(t *testing.T) {
	needMPTCP(t)
	needRoot(t)
	t.Run("program drops root", func(t *testing.T) {
		probe := staticProbe(t)
		wantProbe(t, run(t, probe, strconv.Itoa(nobody)), probeLines(unix.IPPROTO_MPTCP, nobody))
	})
	t.Run("an ordinary user", func(t *testing.T) {
		cmd := run(t, staticProbe(t))
		asNobody(t, cmd)
		wantProbe(t, cmd, probeLines(unix.IPPROTO_MPTCP, nobody))
	})
	t.Run("root may gain privileges", func(t *testing.T) {
		wantProbe(t, run(t, "grep", "NoNewPrivs", "/proc/self/status"), "NoNewPrivs:\t0\n")
	})
}

func TestNamespaces(t *testing.T) {
	needMPTCP(t)
	needRoot(t)
	needProgram(t, "unshare")
	probe := staticProbe(t)
	t.Run("program moves to its own", func(t *testing.T) {
		wantProbe(t, run(t, "unshare", "-n", probe), probeLines(unix.IPPROTO_MPTCP, 0))
	})
	t.Run("and its own process numbers", func(t *testing.T) {
		wantProbe(t, run(t, "unshare", "-npf", probe), probeLines(unix.IPPROTO_MPTCP, 0))
	})
	t.Run("an ordinary user's stays TCP", func(t *testing.T) {
		// unshare -r maps the user to root inside.
		cmd := run(t, "unshare", "-rn", probe)
		asNobody(t, cmd)
		try := exec.Command("unshare", "-rn", "true")
		try.SysProcAttr = cmd.SysProcAttr
		if err := try.Run(); err != nil {
			t.Skipf("ordinary users may not make namespaces here: %v", err)
		}
		want := strings.ReplaceAll(probeLines(unix.IPPROTO_TCP, 0), "mptcp 6", "mptcp 262")
		wantProbe(t, cmd, want)
	})
	t.Run("without MPTCP", func(t *testing.T) {
		newNamespace(t)
		if err := os.WriteFile("/proc/sys/net/mptcp/enabled", []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		got := end(t, run(t, "sh", "-c", probe+" 2>&1"))
		if strings.Count(got.stderr, "no MPTCP sockets") != 1 || !strings.Contains(got.stderr, "net.mptcp.enabled=1") {
			t.Errorf("want one warning with its fix, got %q", got.stderr)
		}
		if !strings.HasPrefix(got.stdout, "tcp4 6 0 0 0 home\n") || got.code != 0 {
			t.Errorf("exit code %d, sockets:\n%s", got.code, got.stdout)
		}
	})
	t.Run("process numbers that /proc does not know", func(t *testing.T) {
		cmd := run(t, probe)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
		got := end(t, cmd)
		if got.code != exitFailed || !strings.Contains(got.stderr, "mount -t proc") {
			t.Errorf("want a refusal with its fix, got %+v", got)
		}
	})
}

func TestEnds(t *testing.T) {
	needMPTCP(t)
	dir := t.TempDir()
	notExecutable := filepath.Join(dir, "text")
	if err := os.WriteFile(notExecutable, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	noInterpreter := filepath.Join(dir, "script")
	if err := os.WriteFile(noInterpreter, []byte("#!/no/such/shell\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		argv   []string
		code   int
		signal syscall.Signal
		stderr string
	}{
		{"success", []string{"true"}, 0, 0, ""},
		{"its own code", []string{"sh", "-c", "exit 7"}, 7, 0, ""},
		{"a signal", []string{"sh", "-c", "kill -TERM $$"}, -1, unix.SIGTERM, ""},
		{"no such program", []string{"dcol-no-such-program"}, exitNotFound, 0, "no such program in PATH"},
		{"no such path", []string{"/no/such/program"}, exitNotFound, 0, "does not exist"},
		{"not executable", []string{notExecutable}, exitNotExecutable, 0, "chmod +x"},
		{"a folder", []string{dir}, exitNotExecutable, 0, "run " + dir},
		{"no interpreter", []string{noInterpreter}, exitNotFound, 0, "interpreter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := end(t, run(t, c.argv...))
			if got.code != c.code || got.signal != c.signal {
				t.Errorf("code %d signal %v, want %d %v", got.code, got.signal, c.code, c.signal)
			}
			if c.stderr == "" && got.stderr != "" || !strings.Contains(got.stderr, c.stderr) {
				t.Errorf("stderr %q, want %q", got.stderr, c.stderr)
			}
		})
	}
}

func TestForeignListenerIsNamed(t *testing.T) {
	needMPTCP(t)
	needRoot(t)
	got := end(t, mark(t, busyMark, "true"))
	if got.code != exitFailed || !strings.Contains(got.stderr, "already supervises this process's system calls") {
		t.Errorf("want a refusal that names the fix, got %+v", got)
	}
}

// TestProgramIsTheProcess checks that nothing is between the program and the user that started it: it is the same
// process, has no foreign children, and keeps its standard streams.
func TestProgramIsTheProcess(t *testing.T) {
	needMPTCP(t)
	cmd := run(t, "sh", "-c", "echo $$ $PPID; read children < /proc/$$/task/$$/children; echo \"[$children]\"; cat")
	cmd.Stdin = strings.NewReader("from standard input\n")
	got := end(t, cmd)
	want := fmt.Sprintf("%d %d\n[]\nfrom standard input\n", cmd.Process.Pid, os.Getpid())
	if diff := cmp.Diff(want, got.stdout); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSignalsReachTheProgram(t *testing.T) {
	needMPTCP(t)
	fifo := newFIFO(t)
	cmd := run(t, "sh", "-c", `trap 'echo caught; exit 3' USR1; echo ready > "$0"; while :; do sleep 0.01; done`, fifo)
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(fifo); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 3 || out.String() != "caught\n" {
		t.Errorf("exit code %d, output %q", cmd.ProcessState.ExitCode(), out.String())
	}
}

func newFIFO(t testing.TB) string {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	return fifo
}
