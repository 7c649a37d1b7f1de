package threehosts

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const protocolMPTCP = 262

// Listen starts an MPTCP server on the host that sends back the bytes it receives. It ends with the test.
func (h *Host) Listen(t testing.TB, at netip.AddrPort) {
	t.Helper()
	l := h.listen(t, at)
	var conns sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]struct{}{}
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = struct{}{}
			mu.Unlock()
			conns.Go(func() {
				_, _ = io.Copy(c, c)
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
}

func (h *Host) listen(t testing.TB, at netip.AddrPort) (l net.Listener) {
	t.Helper()
	h.Do(t, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(true)
		l, err = lc.Listen(context.Background(), "tcp", at.String())
		return err
	})
	return l
}

// ListenReset accepts one MPTCP connection and resets it when its first data arrives.
func (h *Host) ListenReset(t testing.TB, at netip.AddrPort) {
	t.Helper()
	l := h.listen(t, at)
	var conn sync.WaitGroup
	conn.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, 100))
		_ = c.(*net.TCPConn).SetLinger(0)
	})
	t.Cleanup(func() { l.Close(); conn.Wait() })
}

// Dial opens an MPTCP connection from the host. It is closed with the test.
func (h *Host) Dial(t testing.TB, to netip.AddrPort) net.Conn {
	t.Helper()
	var c net.Conn
	h.Do(t, func() (err error) {
		var d net.Dialer
		d.SetMultipathTCP(true)
		c, err = d.DialContext(context.Background(), "tcp", to.String())
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// Echo sends text over the connection and waits until it has come back.
func Echo(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatalf("send: %v", err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("receive: %v", err)
	}
	if string(got) != text {
		t.Fatalf("sent %q, received %q", text, got)
	}
}

// DialMapped is like Dial, but through an IPv6 socket, as many programs do it: the kernel gets the address as
// ::ffff:a.b.c.d.
func (h *Host) DialMapped(t testing.TB, to netip.AddrPort) net.Conn {
	t.Helper()
	var c net.Conn
	h.Do(t, func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocolMPTCP)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "mapped")
		defer f.Close()
		if err := unix.Connect(fd, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}); err != nil {
			return err
		}
		c, err = net.FileConn(f)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}
