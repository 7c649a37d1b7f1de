package mptcpify

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bothSupervisors waits until two processes supervise the program.
func bothSupervisors(t *testing.T, program string) (pids []int) {
	t.Helper()
	eventually(t, "two supervisors run", func() bool {
		pids = supervisorsOf(t, program)
		// A child that a supervisor has just forked has the supervisor's command line: the one that will become the
		// other supervisor, or one with which Go tests something when it starts the first process.
		return len(pids) == supervisors && commandLine(pids[0]) != commandLine(pids[1])
	})
	return pids
}

// commandLine returns how a process was called; empty: it has ended.
func commandLine(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(line)
}

// killSupervisors kills one supervisor of a program after the other. To kill both at once is another matter.
func killSupervisors(t *testing.T, program string) {
	t.Helper()
	for i := range 6 {
		killed := bothSupervisors(t, program)[i%2]
		time.Sleep(20 * time.Millisecond) // the program goes on meanwhile
		if err := unix.Kill(killed, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func() bool { return !slices.Contains(supervisorsOf(t, program), killed) })
	}
}

// TestSupervisorKilled kills one supervisor after the other while a program makes sockets all the time: each call gets
// its socket, and it is MPTCP's.
func TestSupervisorKilled(t *testing.T) {
	needMPTCP(t)
	loop := newChecker(t, "killed", "stop")
	cmd := run(t, loop.Args...)
	stop, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill() }()
	killSupervisors(t, loop.Args[0])
	bothSupervisors(t, loop.Args[0])
	stop.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	t.Log(strings.TrimSpace(stdout.String()))
	eventually(t, "the supervisors end after the program", func() bool { return len(supervisorsOf(t, loop.Args[0])) == 0 })
}

// TestCallOfKilledSupervisor stops a supervisor with a call received and not answered, and kills it then: the other
// answers that call.
func TestCallOfKilledSupervisor(t *testing.T) {
	needMPTCP(t)
	program := newChecker(t, "stopped", "once")
	listener, err := startUnderFilter(t, program, false)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := newBoard()
	if err != nil {
		t.Fatal(err)
	}
	// The other has received the call and ended.
	if err := receive(listener, &shared.calls[1][0]); err != nil {
		t.Fatal(err)
	}
	own, err := newSupervisor(listener, shared, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	own.inherit(1)
	if shared.calls[1][0].id != 0 {
		t.Error("the call is still on the board")
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		program.Process.Kill()
		t.Fatal("the program waits for its socket for ever")
	}
}

// startUnderFilter starts a program under the filter without a supervisor, in the test's network namespace.
func startUnderFilter(t *testing.T, program *exec.Cmd, connects bool) (listener int, err error) {
	t.Helper()
	namespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return 0, err
	}
	defer namespace.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the filter stays on the thread
		if os.Geteuid() == 0 {
			if err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
				return
			}
		}
		if listener, err = installFilter(filterProgram(connects)); err == nil {
			err = program.Start()
		}
	}()
	<-done
	return listener, err
}

func TestRespawns(t *testing.T) {
	var row respawns
	var waits []time.Duration
	told := 0
	for range 10 {
		wait, tell := row.ended(10 * time.Millisecond)
		waits = append(waits, wait)
		if tell {
			told++
		}
	}
	if waits[0] != pause || waits[1] != 2*pause || waits[9] != longestPause || told != 1 {
		t.Errorf("waits %v, told %d times", waits, told)
	}
	if wait, tell := row.ended(longLife); wait != 0 || tell {
		t.Errorf("after a long life: waits %v, told: %v", wait, tell)
	}
	if wait, _ := row.ended(0); wait != pause {
		t.Errorf("the next row begins with %v", wait)
	}
}
