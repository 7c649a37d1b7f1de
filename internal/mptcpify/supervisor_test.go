package mptcpify

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestDaemonKeepsItsSockets follows a program whose first process ends long before its daemon.
func TestDaemonKeepsItsSockets(t *testing.T) {
	needMPTCP(t)
	probe := staticProbe(t)
	gate, result := newFIFO(t), newFIFO(t)
	// The daemon inherits nothing of the caller's, so that the caller's pipes end with the first process unless the
	// supervisor holds them.
	script := newScript(t, fmt.Sprintf(`#!/bin/sh
(exec 3>&- 4>&-; read go < %s; %s > %s) </dev/null >/dev/null 2>&1 &
echo started
`, gate, probe, result))
	inherited, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	cmd := run(t, script)
	// Twice: where the stages have files of their own, and where they do not.
	cmd.ExtraFiles = []*os.File{theirs, theirs}
	// Returns only once nobody holds the program's standard output any more.
	if got := end(t, cmd); got.stdout != "started\n" || got.code != 0 {
		t.Fatalf("first process: %+v", got)
	}
	theirs.Close()
	if n, err := inherited.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d bytes (%v) from a pipe that all have closed", n, err)
	}

	// A service manager's stop must not cost the daemon its sockets.
	for _, pid := range bothSupervisors(t, script) {
		for _, signal := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
			if err := unix.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(probeLines(unix.IPPROTO_MPTCP, os.Geteuid()), string(lines)); diff != "" {
		t.Errorf("daemon's sockets (-want +got):\n%s", diff)
	}
	eventually(t, "the supervisor ends after the daemon", func() bool {
		return len(supervisorsOf(t, script)) == 0
	})
}

// TestSupervisorHoldsNoNamespace checks that a namespace goes with the program that made it: the supervisor worked in
// it, but must not keep it.
func TestSupervisorHoldsNoNamespace(t *testing.T) {
	needMPTCP(t)
	needRoot(t)
	probe := staticProbe(t)
	fifo := newFIFO(t)
	script := newScript(t, fmt.Sprintf("#!/bin/sh\nunshare -n sh -c '%s >/dev/null; readlink /proc/self/ns/net'\nread go < %s\n", probe, fifo))
	cmd := run(t, script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	namespace := strings.TrimSpace(string(line[:n]))
	for _, pid := range supervisorsOf(t, script) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("threads of supervisor %d: %v %v", pid, threads, err)
		}
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(append(threads, files...), func(path string) bool {
			held, err := os.Readlink(path)
			return err == nil && held == namespace
		}) {
			t.Errorf("supervisor %d still holds %s", pid, namespace)
		}
	}
	if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestSignalsDisturbNothing sends the supervisors what Go's runtime sends itself, much more often, while a program
// makes sockets.
func TestSignalsDisturbNothing(t *testing.T) {
	needMPTCP(t)
	loop := newChecker(t, "signalled", "stop")
	cmd := run(t, loop.Args...)
	stop, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids := bothSupervisors(t, loop.Args[0])
	sent := 0
	for began := time.Now(); sent < 20_000 && time.Since(began) < 2*time.Second; {
		for _, pid := range pids {
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
			if err != nil {
				t.Fatal(err)
			}
			for _, thread := range threads {
				tid, err := strconv.Atoi(filepath.Base(thread))
				if err != nil {
					t.Fatal(err)
				}
				if unix.Tgkill(pid, tid, unix.SIGURG) == nil {
					sent++
				}
			}
		}
	}
	stop.Close()
	if err := cmd.Wait(); err != nil || sent == 0 {
		t.Errorf("after %d signals: %v: %s", sent, err, stderr.String())
	}
}

// TestSocketsBelongToTheirUser: a socket gets the effective user and group of the thread that makes it, even if the
// process may not be traced any more, or if they are those of one thread only.
func TestSocketsBelongToTheirUser(t *testing.T) {
	needMPTCP(t)
	needRoot(t)
	needProgram(t, "python3")
	script := `
import ctypes, os, socket, threading
def show():
    s = socket.socket()
    st = os.fstat(s.fileno())
    print(st.st_uid, st.st_gid, s.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL))
show()
def alone():
    ctypes.CDLL(None).syscall(ctypes.c_long(setresuid), ctypes.c_uint(-1), ctypes.c_uint(65532), ctypes.c_uint(-1))
    show()
t = threading.Thread(target=alone); t.start(); t.join()
show()
while len(os.listdir("/proc/self/task")) > 1: pass # it ends a little after join(), and libc's setegid() fails in it
os.setegid(65533); os.seteuid(65534)
show()
`
	script = fmt.Sprintf("setresuid = %d\n", unix.SYS_SETRESUID) + script
	wantProbe(t, run(t, "python3", "-c", script), "0 0 262\n65532 0 262\n0 0 262\n65534 65533 262\n")
}

func BenchmarkSocket(b *testing.B) {
	needMPTCP(b)
	for _, c := range []struct {
		name  string
		start func(argv ...string) *exec.Cmd
	}{
		{"plain", func(argv ...string) *exec.Cmd { return exec.Command(argv[0], argv[1:]...) }},
		{"supervised", func(argv ...string) *exec.Cmd { return run(b, argv...) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			loop := mark(b, loopMark, strconv.Itoa(b.N))
			text, err := c.start(loop.Args...).Output()
			if err != nil {
				b.Fatal(err)
			}
			each, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(each, "ns/socket")
			b.ReportMetric(0, "ns/op")
		})
	}
}
