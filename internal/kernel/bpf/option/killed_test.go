package option

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/tcpopt"
)

// holder is the variable by which this program grants options, says so in a line, and lives until it is killed.
const holder = "DCOL_TEST_HOLD"

func hold() error {
	x, err := Open(granting())
	if err != nil {
		return err
	}
	go func() {
		for {
			r, err := x.Read()
			if err != nil {
				return
			}
			fmt.Println(r.Request.Option)
		}
	}()
	fmt.Println("open")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, x.Close())
}

// listenWith listens with a user timeout, which the accepted connections inherit.
func listenWith(t *testing.T, ns *netnstest.NS, timeout time.Duration) net.Listener {
	t.Helper()
	l := listen(t, ns, serverAddress, false)
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	set := func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
	}
	if e := raw.Control(set); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return l
}

// A shorter user timeout that a connection has already stays. A longer one becomes what the peer asks.
func TestUserTimeoutOfTheProgram(t *testing.T) {
	for _, c := range []struct {
		has, want time.Duration
		verdict   tcpopt.Verdict
	}{{5 * time.Second, 5 * time.Second, tcpopt.Capped}, {60 * time.Second, 30 * time.Second, tcpopt.Granted}} {
		h := newHosts(t)
		open(t, h.client, Config{Ask: []tcpopt.Request{{Option: tcpopt.UserTimeout, Value: 30}}})
		granted := open(t, h.server, granting())
		client, server := connect(t, h.client, listenWith(t, h.server, c.has), false)
		download(t, client, server, 4<<20)
		if r := granted.await(t, tcpopt.UserTimeout); r.Verdict != c.verdict || r.Granted != uint32(c.want.Seconds()) {
			t.Errorf("a program has %v: %+v", c.has, r)
		}
		if got := getsockopt(t, server, unix.TCP_USER_TIMEOUT); got != int(c.want.Milliseconds()) {
			t.Errorf("a program had %v, now %d ms", c.has, got)
		}
	}
}

// The process that grants options is killed while a connection transfers. The connection goes on with what was granted. No
// later one gets anything, until a process grants again: the listener that began under the one that was killed announces by
// the next one.
func TestKilledInMidTransfer(t *testing.T) {
	h := newHosts(t)
	asking := open(t, h.client, Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}}})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.Command(self)
	program.Env = append(os.Environ(), holder+"=1")
	_, out := h.server.Start(t, program, "")
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "open\n" {
		t.Fatalf("%q, %v", line, err)
	}
	l := listen(t, h.server, serverAddress, false)
	client, server := connect(t, h.client, l, false)
	download(t, client, server, 4<<20)
	if line, err := lines.ReadString('\n'); line != tcpopt.Congestion.String()+"\n" {
		t.Fatalf("%q, %v", line, err)
	}
	asking.await(t, tcpopt.Congestion)
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil { // until it is gone
		t.Fatal(err)
	}
	download(t, client, server, 16<<20)
	if got := congestionOf(t, server); got != "reno" {
		t.Errorf("the connection has %s", got)
	}
	time.Sleep(100 * time.Millisecond) // the kernel detaches the program when nobody has it any more
	client, server = connect(t, h.client, l, false)
	download(t, client, server, 4<<20)
	asking.none(t)
	again := open(t, h.server, granting())
	client, server = connect(t, h.client, l, false)
	download(t, client, server, 4<<20)
	if r := again.await(t, tcpopt.Congestion); r.Verdict != tcpopt.Granted {
		t.Errorf("after a restart: %+v", r)
	}
	before, err := again.Calls()
	if err != nil {
		t.Fatal(err)
	}
	download(t, client, server, 64<<20) // the user timeout, which nobody asks, is still awaited in some packets
	if after, err := again.Calls(); err != nil || after > before+mostCalls {
		t.Errorf("the calls go on: %d, then %d, %v", before, after, err)
	}
}
