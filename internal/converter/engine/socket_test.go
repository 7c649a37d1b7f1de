package engine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What is set on a listener is set on the connections that it accepts, whichever protocols the two speak.
func TestAcceptedInherit(t *testing.T) {
	for _, listens := range []bool{false, true} {
		for _, calls := range []bool{false, true} {
			t.Run(fmt.Sprintf("MPTCP: listener %v, client %v", listens, calls), func(t *testing.T) {
				l := listen(t, listens)
				defer l.Close()
				file, err := l.(*net.TCPListener).File()
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				if err := prepare(int(file.Fd())); err != nil {
					t.Fatal(err)
				}
				dial(t, netip.MustParseAddrPort(l.Addr().String()), calls)
				var fd int
				eventually(t, "the connection is accepted", func() bool {
					var errno syscall.Errno
					fd, _, errno = accept(int(file.Fd()))
					return errors.Is(errno, unix.Errno(0))
				})
				defer unix.Close(fd)
				if is := isMultipath(fd); is != (listens && calls) {
					t.Fatalf("the connection is MPTCP: %v", is)
				}
				for e, asked := (&end{fd: int32(fd)}), 0; asked < 2; asked++ { // the second time, the answer is known
					if tcp := e.speaksTCP(); tcp == (listens && calls) {
						t.Errorf("the end is taken for TCP: %v", tcp)
					}
				}
				linger, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
				if err != nil || linger.Onoff == 0 || linger.Linger != 0 {
					t.Errorf("SO_LINGER: %+v, %v", linger, err)
				}
				for name, o := range map[string]struct{ level, option, want int }{
					"TCP_NODELAY":  {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
					"SO_KEEPALIVE": {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
					"TCP_KEEPIDLE": {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle},
				} {
					if got, err := unix.GetsockoptInt(fd, o.level, o.option); err != nil || got != o.want {
						t.Errorf("%s: %d, %v; want %d", name, got, err, o.want)
					}
				}
			})
		}
	}
}

// A read that stops at an urgent byte is not taken for one that has emptied the socket.
func TestUrgentByte(t *testing.T) {
	for _, waits := range []time.Duration{0, 50 * time.Millisecond} {
		to := serve(t, false, echo)
		_, at := start(t, Config{Front: toServer{server: to}}, false)
		c := dial(t, at, false)
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		send := func(b string, flags int) {
			time.Sleep(waits)
			var sent error
			if err := raw.Write(func(fd uintptr) bool { sent = unix.Sendto(int(fd), []byte(b), flags, nil); return true }); err != nil || sent != nil {
				t.Fatal(err, sent)
			}
		}
		send("before", unix.MSG_MORE)
		send("!", unix.MSG_OOB|unix.MSG_MORE)
		send("after", 0)
		b := make([]byte, len("before!after"))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "before!after" {
			t.Errorf("%q, %v", b, err)
		}
	}
}

// Only listeners that take data in SYNs have the handshakes of their clients looked at.
func TestTakesFastOpen(t *testing.T) {
	for _, mptcp := range []bool{false, true} {
		l := listen(t, mptcp)
		t.Cleanup(func() { l.Close() })
		file, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		if takesFastOpen(int(file.Fd())) {
			t.Errorf("MPTCP %v: a listener takes data in SYNs without having been asked", mptcp)
		}
		if err := unix.SetsockoptInt(int(file.Fd()), unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 100); err != nil {
			t.Fatal(err)
		}
		if !takesFastOpen(int(file.Fd())) {
			t.Errorf("MPTCP %v: a listener that takes data in SYNs is not known as one", mptcp)
		}
	}
}
