package inband

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
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
	r, err := OpenReceiver(testMask)
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

// clientProgram opens an MPTCP connection and has a word come back over it, and
// another one for each line of its input.
func clientProgram(server string) int {
	c, err := dialMPTCP(unix.AF_INET, server)
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	lines := bufio.NewScanner(os.Stdin)
	for {
		if _, err := io.WriteString(c, "word"); err != nil {
			return failed(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			return failed(err)
		}
		fmt.Println("ready")
		if !lines.Scan() {
			return 0
		}
	}
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// program is one of ours at work. It ends with the test at the latest.
type program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

// start runs a program in a network namespace, and in a cgroup unless that is
// "", and waits until it is ready.
func start(t testing.TB, ns *netnstest.NS, cgroup, name string, arg ...string) *program {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", arg...)
	cmd.Env = append(os.Environ(), "INBAND_TEST_PROGRAM="+name)
	cmd.Stderr = os.Stderr
	in, out := ns.Start(t, cmd, cgroup)
	p := &program{cmd: cmd, in: in, out: out}
	p.ready(t)
	return p
}

func (p *program) ready(t testing.TB) {
	t.Helper()
	if _, err := io.ReadFull(p.out, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("the program %v did not get ready: %v", p.cmd.Args, err)
	}
}

// again has a client send another word.
func (p *program) again(t testing.TB) {
	t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		t.Fatal(err)
	}
	p.ready(t)
}
