package inband

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/netnstest"
)

// The test binary is also the programs that tests start in other cgroups, or
// kill.
func TestMain(m *testing.M) {
	switch os.Getenv("INBAND_TEST_PROGRAM") {
	case "":
		os.Exit(m.Run())
	case "agent":
		os.Exit(agentProgram(os.Args[1], os.Args[2]))
	case "client":
		os.Exit(clientProgram(os.Args[1]))
	}
}

// agentProgram has sender and receiver at work on an interface until it is killed.
func agentProgram(cgroup, index string) int {
	number, err := strconv.Atoi(index)
	if err != nil {
		return failed(err)
	}
	s, err := OpenSender(SenderConfig{Cgroup: cgroup})
	if err != nil {
		return failed(err)
	}
	defer s.Close()
	if err := s.Attach([]int{number}); err != nil {
		return failed(err)
	}
	r, err := OpenReceiver()
	if err != nil {
		return failed(err)
	}
	defer r.Close()
	if err := r.Attach([]int{number}); err != nil {
		return failed(err)
	}
	fmt.Println("ready")
	_, _ = io.ReadAll(os.Stdin)
	return 0
}

// clientProgram opens an MPTCP connection, has a word come back, and keeps it
// until its input ends.
func clientProgram(server string) int {
	c, err := dialMPTCP(unix.AF_INET, server)
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "word"); err != nil {
		return failed(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		return failed(err)
	}
	fmt.Println("ready")
	_, _ = io.ReadAll(os.Stdin)
	return 0
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// start runs one of our programs in a network namespace, and in a cgroup unless
// that is "", and waits until it is ready. It ends with the test at the latest.
func start(t testing.TB, ns *netnstest.NS, cgroup, program string, arg ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", arg...)
	cmd.Env = append(os.Environ(), "INBAND_TEST_PROGRAM="+program)
	cmd.Stderr = os.Stderr
	if cgroup != "" {
		group, err := os.Open(cgroup)
		if err != nil {
			t.Fatal(err)
		}
		defer group.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ns.Must(t, cmd.Start)
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("the program %s did not get ready: %v", program, err)
	}
	return cmd
}

// newCgroup makes a folder of cgroup v2 for the test.
func newCgroup(t testing.TB) string {
	t.Helper()
	root, err := openCgroup("")
	if err != nil {
		t.Skipf("needs cgroup v2: %v", err)
	}
	defer root.Close()
	path := filepath.Join(root.Name(), "dcol-inband-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Skipf("needs a cgroup of its own: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	})
	return path
}
