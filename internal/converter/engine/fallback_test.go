package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// callsAgain is a front whose clients all want one server, by MPTCP and without a fallback.
type callsAgain struct {
	to      netip.AddrPort
	results chan Result
}

func (f callsAgain) Open(Accepted) (Opening, error) {
	return script{
		read:    func([]byte) Step { return Step{Dial: &Dial{To: f.to, MPTCP: true, NoFallback: true}} },
		dialled: func(r Result) Step { f.results <- r; return Step{} },
	}, nil
}

// A server without MPTCP is connected to again before any byte has moved, one with MPTCP is not.
func TestNoFallback(t *testing.T) {
	for _, speaks := range []bool{false, true} {
		seen := make(chan error, 4) // how connections that brought no bytes have ended
		to := serve(t, speaks, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "first ")
			b := make([]byte, 5)
			if _, err := io.ReadFull(c, b); err != nil {
				seen <- err
				return
			}
			_, _ = c.Write(b)
		})
		results := make(chan Result, 1)
		_, at := start(t, Config{Front: callsAgain{to, results}}, true)
		c := dial(t, at, true)
		_, _ = io.WriteString(c, "bytes")
		if b, err := io.ReadAll(c); err != nil || string(b) != "first bytes" {
			t.Errorf("the server speaks MPTCP: %v: %q, %v", speaks, b, err)
		}
		if r := <-results; r.Errno != 0 || !r.Connected || r.MPTCP != speaks || r.Plain == speaks || r.Handshake <= 0 {
			t.Errorf("the server speaks MPTCP: %v: %+v", speaks, r)
		}
		if !speaks {
			eventually(t, "a connection without bytes has ended", func() bool { return len(seen) > 0 })
			if err := <-seen; !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, io.EOF) {
				t.Errorf("the connection by MPTCP: %v", err)
			}
		}
		if len(seen) > 0 {
			t.Errorf("the server speaks MPTCP: %v: another connection: %v", speaks, <-seen)
		}
	}
}

// A server sends bytes again together with new ones, as Linux does after losses. Of MPTCP sockets that fell back, kernels
// drop the new ones (mptcp.LosesOverlaps). The relay's client gets them.
func TestOverlapsArrive(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: repairs a connection (TCP_REPAIR)")
	}
	words := []string{"old words", "new words"}
	wait, failed, done := make(chan struct{}), make(chan error, 1), make(chan struct{})
	defer close(done)
	to := serve(t, false, func(c *net.TCPConn) {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return // the connection by MPTCP
		}
		_, _ = io.WriteString(c, words[0])
		<-wait
		again, err := rewind(c, len(words[0]))
		if err == nil {
			defer unix.Close(again)
			_, err = unix.Write(again, []byte(words[0]+words[1]))
		}
		failed <- err
		<-done
	})
	_, at := start(t, Config{Front: callsAgain{to, make(chan Result, 1)}}, false)
	c := dial(t, at, false)
	_, _ = io.WriteString(c, "x")
	for i, want := range words {
		b := make([]byte, len(want))
		if _, err := io.ReadFull(c, b); err != nil || !bytes.Equal(b, []byte(want)) {
			t.Fatalf("%q, %v; want %q", b, err, want)
		}
		if i == 0 {
			close(wait)
			if err := <-failed; err != nil {
				t.Fatal(err)
			}
		}
	}
}

// rewind closes a connection, unnoticed by its peer, and returns a socket that continues it n bytes earlier (TCP_REPAIR
// of tcp(7)).
func rewind(c *net.TCPConn, n int) (again int, err error) {
	const receiveQueue, sendQueue = 1, 2 // of TCP_REPAIR_QUEUE (linux/tcp.h)
	file, err := c.File()
	if err != nil {
		return -1, err
	}
	old, local, remote := int(file.Fd()), c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
	var errs []error
	set := func(fd, option, value int) {
		errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value))
	}
	next := func(queue int) int {
		set(old, unix.TCP_REPAIR_QUEUE, queue)
		at, err := unix.GetsockoptInt(old, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		errs = append(errs, err)
		return at
	}
	set(old, unix.TCP_REPAIR, 1)
	sent, received := next(sendQueue), next(receiveQueue)
	again, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err := errors.Join(append(errs, err, c.Close(), file.Close())...); err != nil {
		return -1, err
	}
	set(again, unix.TCP_REPAIR, 1)
	for queue, at := range map[int]int{sendQueue: sent - n, receiveQueue: received} {
		set(again, unix.TCP_REPAIR_QUEUE, queue)
		set(again, unix.TCP_QUEUE_SEQ, int(int32(at)))
	}
	var window []byte // struct tcp_repair_window
	for _, field := range []int{received, 1 << 16, 1 << 16, 1 << 16, received} {
		window = binary.NativeEndian.AppendUint32(window, uint32(field))
	}
	at := func(a *net.TCPAddr) unix.Sockaddr {
		return &unix.SockaddrInet4{Addr: a.AddrPort().Addr().As4(), Port: a.Port}
	}
	errs = append(errs, unix.Bind(again, at(local)), unix.Connect(again, at(remote)),
		unix.SetsockoptString(again, unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW, string(window)))
	set(again, unix.TCP_REPAIR, 0)
	return again, errors.Join(errs...)
}
