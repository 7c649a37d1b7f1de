package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gdamore/tcell/v3/vt"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/api"
)

// soon bounds the wait for what a program does at once, on any machine.
const soon = time.Minute

// terminal is a terminal with a program in it: what it would show, and what the program sent.
type terminal struct {
	t        *testing.T
	keyboard *os.File // the terminal's side of the pty
	line     *os.File // the program's side, so that its settings can be read when the program has ended
	cmd      *exec.Cmd
	ended    chan struct{}
	err      error

	mu     sync.Mutex
	screen vt.MockTerm
	sent   strings.Builder
}

// openPTY returns both sides of a new pseudoterminal.
func openPTY(t *testing.T) (keyboard, line *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("this machine has no pseudoterminals: %v", err)
	}
	keyboard = os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	line, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { line.Close() })
	return keyboard, line
}

func resize(t *testing.T, f *os.File, columns, rows uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		t.Fatal(err)
	}
}

func settings(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

// startTop runs dcol top in a terminal that says it has this size.
func startTop(t *testing.T, socket string, columns, rows uint16, env ...string) *terminal {
	t.Helper()
	return startInTerminal(t, columns, rows, env, "dcol", "top", "--socket", socket)
}

func startInTerminal(t *testing.T, columns, rows uint16, env []string, program string, args ...string) *terminal {
	t.Helper()
	x := &terminal{t: t, ended: make(chan struct{}), screen: vt.NewMockTerm(vt.MockOptSize{X: 80, Y: 24})}
	if err := x.screen.Start(); err != nil {
		t.Fatal(err)
	}
	x.keyboard, x.line = openPTY(t)
	resize(t, x.line, columns, rows)
	x.cmd = exec.Command(program, args...)
	x.cmd.Env = append(os.Environ(), append([]string{"TERM=xterm-256color", "LC_ALL=C.UTF-8"}, env...)...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = x.line, x.line, x.line
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(x.read)
	go func() {
		x.err = x.cmd.Wait()
		close(x.ended)
	}()
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		<-x.ended
		x.keyboard.Close() // ends the reader
		reading.Wait()
		_ = x.screen.Stop()
	})
	return x
}

// read gives the screen what the program sends.
func (x *terminal) read() {
	buf := make([]byte, 1<<16)
	for {
		n, err := x.keyboard.Read(buf)
		if err != nil {
			return
		}
		x.mu.Lock()
		x.sent.Write(buf[:n])
		_, _ = x.screen.Write(buf[:n])
		_ = x.screen.Drain()
		x.mu.Unlock()
	}
}

// text returns what the terminal shows.
func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var b strings.Builder
	for row := range vt.Row(24) {
		var line strings.Builder
		for column := range vt.Col(80) {
			c := x.screen.GetCell(vt.Coord{X: column, Y: row}).C
			if c == "" {
				c = " "
			}
			line.WriteString(c)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

func (x *terminal) output() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sent.String()
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := x.keyboard.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// waitFor waits until the terminal shows something that a condition wants.
func (x *terminal) waitFor(what string, is func(text string) bool) {
	x.t.Helper()
	deadline := time.After(soon)
	for !is(x.text()) {
		select {
		case <-x.ended:
			x.t.Fatalf("dcol top ended (%v) before %s:\n%s", x.err, what, x.output())
		case <-deadline:
			x.t.Fatalf("no %s:\n%s", what, x.text())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (x *terminal) waitForText(want string) {
	x.t.Helper()
	x.waitFor(fmt.Sprintf("%q", want), func(text string) bool { return strings.Contains(text, want) })
}

// waitForOutput waits until the program has sent something, also after its end.
func (x *terminal) waitForOutput(what string, is func(string) bool) {
	x.t.Helper()
	for deadline := time.Now().Add(soon); !is(x.output()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			x.t.Fatalf("no %s: %q", what, x.output())
		}
	}
}

func (x *terminal) waitForEnd() {
	x.t.Helper()
	select {
	case <-x.ended:
	case <-time.After(soon):
		x.t.Fatalf("dcol top does not end:\n%s", x.text())
	}
}

// live is an agent with a connection, whose answers can be changed.
type live struct{ canned }

func newLive() *live {
	at := netip.MustParseAddrPort
	l := new(live)
	l.status = api.Status{Schema: api.StatusSchema, Member: "alice", Roles: []string{"client"}, Since: time.Now().Add(-time.Hour), Client: &api.Using{
		Waypoints: []api.Waypoint{{Name: "bob", Addr: at("192.0.2.7:45672"), State: api.WaypointUp, RTT: 12}},
		Connections: []api.Connection{{Token: "0a0b0c0d", Remote: at("203.0.113.5:443"), Since: time.Now(), Subflows: []api.Subflow{
			{Kind: "direct", State: api.SubflowUp, Remote: at("203.0.113.5:443"), RTT: 30, ReceiveRate: 9.4e6},
			{Kind: "in-band", Waypoint: "bob\x1b]0;owned\a\x1b[2J", State: api.SubflowUp, Remote: at("192.0.2.7:443"), RTT: 61, ReceiveRate: 9.3e6},
		}}},
	}}
	return l
}

// start has the agent answer at a socket, until the function that it returns is called.
func (l *live) start(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, listener, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestTop(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	agent := newLive()
	stop := agent.start(t, socket)
	x := startTop(t, socket, 80, 24)
	x.waitForText("203.0.113.5:443")
	x.waitForText("18.7M")
	if out := x.output(); strings.Contains(out, "owned\a") || strings.Contains(out, "\x1b]0;owned") {
		t.Errorf("control characters of a member reach the terminal: %q", out)
	}

	x.press("?")
	x.waitForText("retransmissions")
	x.press("q")
	x.waitForText("WAYPOINT")
	x.press("\t")
	x.press("u")
	x.waitForText("Use bob first?")
	x.press("y")
	x.waitForText("done: taken first: bob")
	x.press("\tw")
	x.waitForText("A new connection to")
	x.press("q")

	stop()
	x.waitForText("PROBLEM: the agent does not answer: no agent is running")
	agent = newLive()
	agent.status.Member = "alice-again"
	agent.start(t, socket)
	x.waitForText("the agent answers again")
	x.waitForText("alice-again")

	// What the terminal says of its size is not believed. The emulator keeps its own, of 80 by 24.
	for _, size := range [][2]uint16{{0, 0}, {10_000, 10_000}, {1, 1}, {65_535, 65_535}, {40, 24}} {
		resize(t, x.line, size[0], size[1])
	}
	x.waitFor("narrow header", func(text string) bool {
		line, _, _ := strings.Cut(text, "\n")
		return utf8.RuneCountInString(line) <= 40 && strings.Contains(line, ":")
	})
	resize(t, x.line, 80, 24)
	x.waitForText("OUT QUEUED")

	x.press("q")
	x.waitForEnd()
	if x.err != nil {
		t.Errorf("after q: %v", x.err)
	}
}

// Ctrl-Z leads back to the shell, and fg to the same picture.
func TestTopIsSuspended(t *testing.T) {
	t.Parallel()
	const taken = "\x1b[?1049h" // the screen
	socket := filepath.Join(t.TempDir(), "agent.sock")
	newLive().start(t, socket)
	for name, test := range map[string]struct {
		program string
		args    []string
	}{
		"in a shell":      {"sh", []string{"-mc", `dcol top --socket "$0"; echo was-stopped; fg; echo was-ended`, socket}},
		"without a shell": {"dcol", []string{"top", "--socket", socket}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := startInTerminal(t, 80, 24, nil, test.program, test.args...)
			x.waitForText("203.0.113.5:443")
			x.press("\x1a")
			x.waitForOutput("second picture", func(out string) bool { return strings.Count(out, taken) == 2 })
			stopped := strings.Contains(x.output(), "was-stopped")
			if shell := test.program == "sh"; stopped != shell {
				t.Errorf("stopped: %v, want %v: %q", stopped, shell, x.output())
			}
			x.waitForText("203.0.113.5:443")
			x.press("?")
			x.waitForText("retransmissions")
			x.press("q")
			x.waitForText("WAYPOINT")
			x.press("q")
			x.waitForEnd()
			if x.err != nil {
				t.Errorf("after q: %v: %q", x.err, x.output())
			}
		})
	}
}

// However the program ends, the terminal is as it was.
func TestTopRestoresTheTerminal(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*terminal){
		"q":       func(x *terminal) { x.press("q") },
		"ctrl-c":  func(x *terminal) { x.press("\x03") },
		"SIGTERM": func(x *terminal) { _ = x.cmd.Process.Signal(syscall.SIGTERM) },
		"SIGHUP":  func(x *terminal) { _ = x.cmd.Process.Signal(syscall.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "agent.sock")
			newLive().start(t, socket)
			_, fresh := openPTY(t)
			want := settings(t, fresh) // those of any new terminal
			x := startTop(t, socket, 80, 24)
			x.waitForText("203.0.113.5:443")
			if settings(t, x.line) == want {
				t.Fatal("the settings do not change while it runs: is the right terminal looked at?")
			}
			end(x)
			x.waitForEnd()
			if got := settings(t, x.line); got != want {
				t.Errorf("the terminal's settings are %+v, were %+v", got, want)
			}
			x.waitForOutput("the shell's screen, and the cursor", func(out string) bool {
				return strings.LastIndex(out, "\x1b[?1049l") > strings.LastIndex(out, "\x1b[?1049h") &&
					strings.LastIndex(out, "\x1b[?25h") > strings.LastIndex(out, "\x1b[?25l")
			})
		})
	}
}

func TestTopWithoutColours(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	newLive().start(t, socket)
	for name, env := range map[string][]string{"NO_COLOR": {"NO_COLOR=1"}, "vt100": {"TERM=vt100"}, "ASCII": {"LC_ALL=C", "NO_COLOR=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := startTop(t, socket, 80, 24, env...)
			x.waitForText("203.0.113.5:443")
			x.waitForText("up")
			out := x.output()
			for _, colour := range []string{"\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[38;"} {
				if strings.Contains(out, colour) {
					t.Errorf("the colour %q is sent: %q", colour, out)
				}
			}
			if name == "ASCII" {
				for _, r := range out {
					if r > '~' {
						t.Errorf("%q is sent to a terminal of ASCII", r)
						break
					}
				}
			}
		})
	}
}

// A picture that has hardly changed costs next to nothing on the line.
func TestTopSendsChangesOnly(t *testing.T) {
	t.Parallel()
	const picture = "\x1b[?2026h" // begins each
	socket := filepath.Join(t.TempDir(), "agent.sock")
	agent := newLive()
	for i := range agent.status.Client.Connections[0].Subflows {
		agent.status.Client.Connections[0].Subflows[i].ReceiveRate = 0 // so that charts do not move
	}
	agent.start(t, socket)
	x := startTop(t, socket, 80, 24)
	x.waitForText("203.0.113.5:443")
	// The first pictures may be whole: the terminal tells its size.
	const whole = 3
	x.waitForOutput("pictures", func(out string) bool { return strings.Count(out, picture) > whole+3 })
	pictures := strings.Split(x.output(), picture)
	for _, p := range pictures[whole+1 : len(pictures)-1] {
		// The clock and ages, and the moves to them; a whole picture has more than 2,000 bytes.
		if len(p) > 500 {
			t.Errorf("%d bytes are sent although only the clock changed: %q", len(p), p)
		}
	}
}

func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	newLive().start(t, socket)
	for _, test := range []struct{ term, want string }{
		{"TERM=dumb", `TERM is "dumb": use dcol status`}, {"TERM=", `TERM is "": use dcol status`}, {"TERM=xterm", "use dcol status, whose output can go anywhere"},
	} {
		cmd := exec.Command("dcol", "top", "--socket", socket)
		cmd.Env = append(os.Environ(), test.term)
		out, err := cmd.CombinedOutput() // a pipe
		if err == nil || !strings.Contains(string(out), test.want) {
			t.Errorf("%s: %v, %s; want %s", test.term, err, out, test.want)
		}
	}
	cmd := exec.Command("dcol", "top", "--socket", filepath.Join(t.TempDir(), "none.sock"))
	cmd.Env = append(os.Environ(), "TERM=xterm")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no agent is running") {
		t.Errorf("without an agent: %v, %s", err, out)
	}
}
