package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// With these in its environment, the test's program is a process with an engine and nothing else: the server's address,
// how many descriptors it has left (0: as many as it may), and that clients may speak MPTCP.
const (
	childServer = "DCOL_TEST_ENGINE_FOR"
	childHas    = "DCOL_TEST_DESCRIPTORS"
	childMPTCP  = "DCOL_TEST_MPTCP"
)

// report describes a child process.
type report struct {
	Counters Counters
	Heap     uint64 // bytes that are in use
}

// child runs an engine. It prints its address, answers each line on its standard input with a report, and ends with its
// input. The line "raise" gives it descriptors.
func child(server string) error {
	var descriptors uint64
	if _, err := fmt.Sscan(os.Getenv(childHas), &descriptors); err != nil {
		return err
	}
	var config net.ListenConfig
	config.SetMultipathTCP(os.Getenv(childMPTCP) != "")
	l, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer file.Close() // not sooner, as the engine uses the descriptor
	defer l.Close()
	e, err := New(Config{
		Listeners: []int{int(file.Fd())}, Loops: 1, Front: toServer{server: netip.MustParseAddrPort(server)},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	go func() { _ = e.Run(context.Background()) }()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	highest, err := unix.Dup(0)
	if err != nil {
		return err
	}
	few := limit
	few.Cur = uint64(highest) + descriptors
	if descriptors == 0 {
		few.Cur = limit.Max
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "raise" {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
				return err
			}
		}
		var memory runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&memory)
		line, err := json.Marshal(report{e.Counters(), memory.HeapAlloc})
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return nil
}

// process is a running child.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   bytes.Buffer
	in    io.WriteCloser
	out   *bufio.Scanner
	at    netip.AddrPort // where its engine listens
	ended bool
}

func startChild(t *testing.T, server netip.AddrPort, descriptors int) *process {
	t.Helper()
	return startProcess(t, childServer+"="+server.String(), fmt.Sprintf("%s=%d", childHas, descriptors))
}

// startProcess runs the test's program with its own environment.
func startProcess(t *testing.T, env ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], "-test.run=^$")}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.log
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	p.out = bufio.NewScanner(out)
	if p.at, err = netip.ParseAddrPort(p.line()); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) end() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the engine's process: %v", err)
	}
}

// kill ends the process by SIGKILL.
func (p *process) kill() {
	p.t.Helper()
	p.ended = true
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	_ = p.cmd.Wait()
}

func (p *process) line() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.end()
		p.t.Fatalf("the engine's process has ended: %v\n%s", p.out.Err(), p.log.String())
	}
	return p.out.Text()
}

// ask sends a command and returns the report.
func (p *process) ask(command string) (r report) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(p.line()), &r); err != nil {
		p.t.Fatal(err)
	}
	return r
}

const childDescriptors = 20 // for at most ten pairs

// Without descriptors for more connections, open ones continue and new ones wait. The engine fills neither the log nor
// a processor. Once there are descriptors again, the waiting connections are served.
func TestWithoutDescriptors(t *testing.T) {
	to := serve(t, false, echo)
	began := time.Now()
	p := startChild(t, to, childDescriptors)
	at := p.at
	counters := func(command string) Counters { t.Helper(); return p.ask(command).Counters }

	// says reports whether the server answers within a time.
	says := func(c net.Conn, within time.Duration) bool {
		_ = c.SetDeadline(time.Now().Add(within))
		if _, err := c.Write([]byte("x")); err != nil {
			return false
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err == nil
	}
	var served []net.Conn
	for counters("").Lacking == 0 {
		if len(served) > childDescriptors/2 {
			t.Fatalf("%d connections are served with %d descriptors", len(served), childDescriptors)
		}
		c := dial(t, at, false)
		if !says(c, 30*time.Second) {
			t.Fatalf("connection %d is not served", len(served))
		}
		served = append(served, c)
	}
	var waiting []net.Conn
	for range 5 {
		waiting = append(waiting, dial(t, at, false))
	}
	for range 100 {
		for _, c := range served {
			if !says(c, 30*time.Second) {
				t.Fatal("a connection that there was does not continue")
			}
		}
	}
	first := counters("").Lacking
	eventually(t, "it tries again", func() bool { return counters("").Lacking > first })
	n, took := counters("").Lacking, time.Since(began)
	if most := int64(took/pause) + 2; n > most {
		t.Errorf("descriptors were lacking %d times in %v, more than %d", n, took, most)
	}

	if c := counters(""); c.Pairs != int64(len(served)) || c.Refused > 0 {
		t.Errorf("%d connections are served, %+v", len(served), c)
	}
	_ = served[0].Close() // which makes room for one
	if !says(waiting[0], 30*time.Second) {
		t.Error("a connection that waited is not served in place of one that has ended")
	}
	counters("raise")
	for i, c := range waiting {
		if !says(c, 30*time.Second) {
			t.Errorf("connection %d of those that waited is not served", i)
		}
	}
	p.end()
	if lines := strings.Count(p.log.String(), "\n"); lines != 1 || !strings.Contains(p.log.String(), "no connection can be accepted") {
		t.Errorf("%d lines in the log:\n%s", lines, p.log.String())
	}
}

// The beginning and the end of a shortage are logged once each, however often something is lacking, and a short success
// is no end.
func TestShortage(t *testing.T) {
	var log strings.Builder
	s := shortage{log: slog.New(slog.NewTextHandler(&log, nil))}
	now := time.Unix(1000, 0)
	logged := func(when string, want int) {
		t.Helper()
		if n := strings.Count(log.String(), "\n"); n != want {
			t.Errorf("%s: %d lines, want %d:\n%s", when, n, want, log.String())
		}
	}
	s.accepted(now)
	logged("at first", 0)
	for range 1000 {
		s.note(unix.EMFILE, now)
		now = now.Add(pause)
		s.accepted(now)
	}
	logged("in a shortage", 1)
	now = now.Add(shortageCalm)
	for range 10 {
		s.accepted(now)
	}
	logged("after it", 2)
	s.note(unix.ENFILE, now)
	logged("in the next", 3)
}

// An idle pair costs less than a kilobyte of user memory, so that 100,000 cost less than 100 MB.
func TestIdlePairsMemory(t *testing.T) {
	pairs := min(4000, int(descriptorLimit()-spareDescriptors)/2-200)
	l := listen(t, false)
	accepted := make(chan net.Conn, pairs)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	p := startChild(t, netip.MustParseAddrPort(l.Addr().String()), 0)
	before := p.ask("").Heap
	var clients []net.Conn
	for range pairs {
		clients = append(clients, dial(t, p.at, false))
	}
	eventually(t, "all are open", func() bool { return p.ask("").Counters.Pairs == int64(pairs) && len(accepted) == pairs })
	after := p.ask("").Heap
	each := int64(after-before) / int64(pairs)
	t.Logf("%d bytes for each of %d pairs", each, pairs)
	if each > 1000 {
		t.Errorf("%d bytes for each of %d pairs, more than 1000", each, pairs)
	}
	for _, c := range clients {
		_ = c.Close()
	}
	_ = l.Close()
	for c := range accepted {
		_ = c.Close()
	}
}
