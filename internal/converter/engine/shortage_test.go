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
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// With this in its environment, the test's program is a process with an engine and nothing else. It is the server's
// address.
const childServer = "DCOL_TEST_ENGINE_FOR"

// child runs an engine in a process that has few descriptors left. It says where it listens, answers each line on its
// standard input with the engine's counters, and ends with its input. The line "raise" gives it descriptors.
func child(server string) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
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
	few.Cur = uint64(highest) + childDescriptors
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
		line, err := json.Marshal(e.Counters())
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return nil
}

const childDescriptors = 20 // for at most ten pairs

// Without descriptors for more connections, those that there are continue, others wait, and the engine neither fills the
// log nor a processor. Once there are descriptors again, those that waited are served.
func TestWithoutDescriptors(t *testing.T) {
	to := serve(t, false, echo)
	began := time.Now()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childServer+"="+to.String())
	var log bytes.Buffer
	cmd.Stderr = &log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if ended {
			return
		}
		ended = true
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the engine's process: %v", err)
		}
	}
	defer end()
	out := bufio.NewScanner(stdout)
	line := func() string {
		t.Helper()
		if !out.Scan() {
			end()
			t.Fatalf("the engine's process has ended: %v\n%s", out.Err(), log.String())
		}
		return out.Text()
	}
	at, err := netip.ParseAddrPort(line())
	if err != nil {
		t.Fatal(err)
	}
	counters := func(command string) (c Counters) {
		t.Helper()
		if _, err := fmt.Fprintln(stdin, command); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(line()), &c); err != nil {
			t.Fatal(err)
		}
		return c
	}

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
	end()
	if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "no connection can be accepted") {
		t.Errorf("%d lines in the log:\n%s", lines, log.String())
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
