package testbed

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// victimEnv selects how a process of this test binary ends.
const victimEnv = "TESTBED_VICTIM"

// beVictim builds a network with a daemon on a host and prints its namespaces. Then it exits, or waits to be
// killed, without closing the network.
func beVictim(how string) {
	n, err := Build(context.Background(), triangle(BackendEmulator, LinkParams{}), slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// A daemon in the truest sense: its parent is gone, its session its own.
	if err := n.Host("client").Command(context.Background(), "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &").Run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, h := range n.hosts {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", h.init.Process.Pid))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(ns)
	}
	fmt.Println("built")
	if how == "panic" {
		panic("as asked")
	}
	select {}
}

// holders returns the processes in any of the network namespaces.
func holders(t *testing.T, namespaces map[string]bool) (pids []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		// A process may end while we look.
		if ns, err := os.Readlink(link); err == nil && namespaces[ns] {
			pids = append(pids, strings.Split(link, "/")[2])
		}
	}
	return pids
}

func TestNothingOutlivesTheBuilder(t *testing.T) {
	needRoot(t)
	tests := []struct {
		how    string
		signal unix.Signal // 0: it exits
	}{
		{"kill", unix.SIGKILL}, {"interrupt", unix.SIGINT}, {"terminate", unix.SIGTERM}, {"panic", 0},
	}
	for _, test := range tests {
		t.Run(test.how, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), victimEnv+"="+test.how)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			namespaces := map[string]bool{}
			lines := bufio.NewScanner(out)
			for lines.Scan() && lines.Text() != "built" {
				namespaces[lines.Text()] = true
			}
			if len(namespaces) != 5 {
				t.Fatalf("the victim did not build its network: %v", namespaces)
			}
			emulators := children(t, cmd.Process.Pid, "dcol-lab-emulator")
			if test.signal != 0 {
				if len(holders(t, namespaces)) < 6 || len(emulators) != 1 {
					t.Errorf("found %v on the hosts and %v emulators: the test sees too little",
						holders(t, namespaces), emulators)
				}
				if err := cmd.Process.Signal(test.signal); err != nil {
					t.Fatal(err)
				}
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the victim ended well")
			}
			deadline := time.Now().Add(10 * time.Second)
			for {
				left := holders(t, namespaces)
				for _, emulator := range emulators {
					// A zombie, which has no executable, is for others to reap.
					if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", emulator)); err == nil {
						left = append(left, fmt.Sprint("emulator ", emulator))
					}
				}
				if len(left) == 0 {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("still there after 10 s: %v", left)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}

// children returns the child processes of pid with that argv[0].
func children(t *testing.T, pid int, argv0 string) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		content, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(content)) {
			cmdline, err := os.ReadFile("/proc/" + field + "/cmdline")
			if name, _, _ := strings.Cut(string(cmdline), "\x00"); err == nil && name == argv0 {
				var child int
				if _, err := fmt.Sscan(field, &child); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
	return pids
}
