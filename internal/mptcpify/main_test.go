package mptcpify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The test binary stands in for dcol: with runMark for `dcol run --`, with busyMark for the same in a process that has
// a seccomp listener already.
const (
	runMark  = "run"
	busyMark = "busy-run"
	loopMark = "make-sockets"
	// checkMark makes sockets that must be MPTCP's: one for "once", else until standard input is closed.
	checkMark = "check-sockets"
	// connectMark measures connect(), fakeMark is the relay and a converter of the tests.
	connectMark = "make-connections"
	fakeMark    = "fake-relay"
	dialMark    = "dial-on-request"
	stuckMark   = "connect-from-nowhere"
	// relayVariable is the environment variable with the relay's socket.
	relayVariable = "TEST_RELAY"
)

func TestMain(m *testing.M) {
	relayTimeout = 5 * time.Second
	if code, ok := Stage(os.Args); ok {
		os.Exit(code)
	}
	unix.Umask(0o022) // ordinary users of the tests reach what root makes
	mark := ""
	if len(os.Args) > 2 {
		mark = os.Args[1]
	}
	switch mark {
	case loopMark:
		os.Exit(makeSockets(os.Args[2]))
	case checkMark:
		os.Exit(checkSockets(os.Args[2]))
	case connectMark:
		os.Exit(makeConnections(os.Args[2], os.Args[3], os.Args[4]))
	case stuckMark:
		os.Exit(connectFromNowhere())
	case dialMark:
		os.Exit(dialOnRequest(os.Args[2], os.Args[3]))
	case fakeMark:
		os.Exit(fakeRelay(os.Args[2], os.Args[3]))
	case busyMark:
		runtime.LockOSThread()
		if _, err := installFilter([]bpf.Instruction{bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}}); err != nil {
			fmt.Fprintln(os.Stderr, "install a first listener:", err)
			os.Exit(1)
		}
		fallthrough
	case runMark:
		err := Exec(slog.New(slog.NewTextHandler(os.Stderr, nil)), os.Getenv(relayVariable), os.Args[2:])
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(ExitCode(err))
	default:
		// Under the race detector each process would wait a second at its end.
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
		os.Exit(m.Run())
	}
}

// makeSockets prints how many nanoseconds a socket takes.
func makeSockets(count string) int {
	n, err := strconv.Atoi(count)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	start := time.Now()
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if fd <= 2 {
			fmt.Fprintf(os.Stderr, "a socket as file %d, which is another\n", fd)
			return 1
		}
		unix.Close(fd)
	}
	fmt.Println(time.Since(start).Nanoseconds() / int64(n))
	return 0
}

// checkSockets ends with 1 at the first socket that is not as it should be.
func checkSockets(how string) int {
	stop := make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		close(stop)
	}()
	for count := 1; ; count++ {
		if err := checkSocket(); err != nil {
			fmt.Fprintf(os.Stderr, "socket %d: %v\n", count, err)
			return 1
		}
		select {
		case <-stop:
		default:
			if how != "once" {
				continue
			}
		}
		fmt.Printf("%d sockets\n", count)
		return 0
	}
}

func checkSocket() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_MPTCP || fd <= 2 {
		return fmt.Errorf("it is file %d, of protocol %d: %w", fd, protocol, err)
	}
	return unix.Close(fd)
}

// mark returns the command that runs the test binary with a mark.
func mark(t testing.TB, mark string, argv ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(self, append([]string{mark}, argv...)...)
}

// newChecker returns a program that checks the sockets that it makes. The name tells it from those of other tests.
func newChecker(t testing.TB, name, how string) *exec.Cmd {
	t.Helper()
	program := mark(t, checkMark, how)
	program.Args[0] += "-" + name
	if err := os.Symlink(program.Path, program.Args[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(program.Args[0]) })
	return program
}

func run(t testing.TB, argv ...string) *exec.Cmd { return mark(t, runMark, argv...) }

// outcome is the result that the caller of `dcol run` sees.
type outcome struct {
	code           int
	signal         syscall.Signal
	stdout, stderr string
}

func end(t testing.TB, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd, err)
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	o := outcome{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	if status.Signaled() {
		o.signal = status.Signal()
	}
	return o
}

func needProgram(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s: apt-get install it", name)
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// build compiles once a test binary.
func build(t testing.TB, name string, argv ...string) string {
	t.Helper()
	needProgram(t, argv[0])
	out := filepath.Join(t.TempDir(), name)
	cmd := exec.Command(argv[0], append(argv[1:], out)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, text)
	}
	openToAll(t, filepath.Dir(out))
	return out
}

// openToAll lets other users reach a test's folder.
func openToAll(t testing.TB, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

const nobody = 65534

// asNobody makes the test binary that cmd starts run as an ordinary user.
func asNobody(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	needRoot(t)
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	try := exec.Command("sh", "-c", "exec </dev/null >/dev/null")
	try.Stdin, try.Stdout = os.Stdin, os.Stdout // /dev/null is for the user to open
	try.SysProcAttr = user
	if err := try.Run(); err != nil {
		t.Skipf("ordinary users cannot use /dev/null here (chmod 666 /dev/null): %v", err)
	}
	binary, err := os.ReadFile(cmd.Path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	openToAll(t, dir)
	cmd.Path = filepath.Join(dir, "dcol")
	if err := os.WriteFile(cmd.Path, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = user
}

func dynamicProbe(t testing.TB) string {
	return build(t, "probe", "gcc", "-O", "-Wall", "-Werror", "-pthread", "testdata/probe.c", "-o")
}

func staticProbe(t testing.TB) string {
	return build(t, "probe-static", "gcc", "-O", "-static", "-pthread", "testdata/probe.c", "-o")
}

func goProbe(t testing.TB) string {
	return build(t, "probe-go", "go", "build", "-C", "testdata/probe", "-o")
}

// newNamespace moves the test into a fresh network namespace with lo up.
// Programs that it starts are in it too.
func newNamespace(t testing.TB) {
	t.Helper()
	needRoot(t)
	// Never unlocked: the thread dies with the test, and the namespace with it.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("lo up: %v %s", err, text)
	}
}

// newScript writes an executable script and returns its path, by which its supervisors are found.
func newScript(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// supervisorsOf finds the processes that supervise the program.
func supervisorsOf(t testing.TB, program string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // ended meanwhile
		}
		if slices.ContainsFunc([]string{stageSupervise, stageSecond}, func(stage string) bool {
			return strings.Contains(string(line), "\x00"+stageMark+"\x00"+stage+"\x00"+program+"\x00")
		}) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// eventually waits for something that happens in other processes.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// acceptAndClose starts a server that closes each connection at once, and returns its address.
func acceptAndClose(t testing.TB, mptcp bool) string {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(mptcp)
	l, err := config.Listen(context.Background(), "tcp", serverAddr+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	return l.Addr().String()
}
