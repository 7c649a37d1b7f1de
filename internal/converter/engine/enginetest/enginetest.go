// Package enginetest runs engines, servers and clients on the loopback interface for tests.
package enginetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/engine"
)

// Listen listens at a free port of the address until the test ends.
func Listen(t *testing.T, addr string, mptcp bool) *net.TCPListener {
	t.Helper()
	var c net.ListenConfig
	c.SetMultipathTCP(mptcp)
	l, err := c.Listen(t.Context(), "tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// Start runs an engine with a front at 127.0.0.1 until the test ends, and returns its address.
func Start(t *testing.T, front engine.Front, mptcp bool) (*engine.Engine, netip.AddrPort) {
	t.Helper()
	return StartAt(t, front, Listen(t, "127.0.0.1", mptcp))
}

// StartAt runs an engine at a listener.
func StartAt(t *testing.T, front engine.Front, l *net.TCPListener) (*engine.Engine, netip.AddrPort) {
	t.Helper()
	file, err := l.File() // non-blocking, as the listener is
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Config{Listeners: []int{int(file.Fd())}, Front: front})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		file.Close()
	})
	return e, AddrPort(l.Addr())
}

// Serve accepts connections at the address and handles each in a goroutine, until the test ends.
func Serve(t *testing.T, addr string, mptcp bool, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l := Listen(t, addr, mptcp)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			all.Go(func() { defer c.Close(); handle(c) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return AddrPort(l.Addr())
}

// Echo sends back what comes, and closes its direction after the other has.
func Echo(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() }

// Nobody returns an address of the host at which nobody listens.
func Nobody(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	l := Listen(t, addr, false)
	defer l.Close()
	return AddrPort(l.Addr())
}

// Silent returns an address at which connections are accepted and nothing is said.
func Silent(t *testing.T) netip.AddrPort {
	t.Helper()
	return AddrPort(Listen(t, "127.0.0.1", true).Addr())
}

// Dial connects to an address until the test ends. After half a minute reads and writes fail.
func Dial(t *testing.T, to netip.AddrPort, mptcp bool) *net.TCPConn {
	t.Helper()
	return DialFrom(t, nil, to, mptcp)
}

// DialFrom connects from a local address; nil: any.
func DialFrom(t *testing.T, from net.Addr, to netip.AddrPort, mptcp bool) *net.TCPConn {
	t.Helper()
	d := net.Dialer{LocalAddr: from}
	d.SetMultipathTCP(mptcp)
	c, err := d.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c.(*net.TCPConn)
}

// TakeDataInSYN has a listener take data in SYNs (TCP Fast Open). The sysctl net.ipv4.tcp_fastopen decides, too.
func TakeDataInSYN(t *testing.T, l *net.TCPListener) {
	t.Helper()
	raw, err := l.SyscallConn()
	if err == nil {
		var bad error
		err = raw.Control(func(fd uintptr) { bad = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 100) })
		err = errors.Join(err, bad)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Exchange sends n random bytes to a server that echoes, closes this direction, and demands them back.
func Exchange(t *testing.T, c *net.TCPConn, n int) {
	t.Helper()
	sent, got := sha256.New(), sha256.New()
	written := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.MultiWriter(sent, c), rand.NewChaCha8([32]byte{byte(n)}), int64(n))
		written <- errors.Join(err, c.CloseWrite())
	}()
	back, err := io.Copy(got, c)
	if err := errors.Join(err, <-written); err != nil || back != int64(n) || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d of %d bytes came back, or others: %v", back, n, err)
	}
}

// Eventually waits until a condition holds.
func Eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after ten seconds: %s", what)
		}
	}
}

// AddrPort returns a TCP address as the engine has it.
func AddrPort(a net.Addr) netip.AddrPort {
	at := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
