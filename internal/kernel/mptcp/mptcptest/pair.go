package mptcptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Pair is a client with one connection to a server, and a join beside its first subflow.
type Pair struct {
	Client, Server *netnstest.NS
	Kernel         *mptcp.Namespace
	Token          uint32
	First, Join    Ends
	Conn           net.Conn // the client's
}

// Ends are the addresses of a subflow.
type Ends struct{ Local, Remote netip.AddrPort }

// NewPair returns namespaces for a client and a server, with an IPv4 or IPv6 address each.
func NewPair(t *testing.T, client, server string) *Pair {
	t.Helper()
	s := &Pair{Client: netnstest.New(t), Server: netnstest.New(t)}
	netnstest.Veth(t, end(s.Client, client), end(s.Server, server))
	return s
}

// NewDistantPair is NewPair, but each packet arrives after the delay. It skips the test on a host without /dev/net/tun.
func NewDistantPair(t *testing.T, client, server string, delay time.Duration) *Pair {
	t.Helper()
	s := &Pair{Client: netnstest.New(t), Server: netnstest.New(t)}
	ends := [2]*os.File{end(s.Client, client).TUN(t), end(s.Server, server).TUN(t)}
	var wires sync.WaitGroup
	for i := range ends {
		wires.Go(func() { carry(ends[i], ends[1-i], delay) })
	}
	t.Cleanup(func() {
		ends[0].Close()
		ends[1].Close()
		wires.Wait()
	})
	return s
}

func end(ns *netnstest.NS, address string) netnstest.End {
	bits := "/24"
	if netip.MustParseAddr(address).Is6() {
		bits = "/64"
	}
	return netnstest.End{NS: ns, Name: "eth0", Addresses: []string{address + bits}}
}

// carry copies each packet after the delay, until from is closed.
func carry(from io.Reader, to io.Writer, delay time.Duration) {
	type packet struct {
		due  time.Time
		data []byte
	}
	wire := make(chan packet, 1024)
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		for p := range wire {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.data)
		}
	}()
	for buffer := make([]byte, 65536); ; {
		n, err := from.Read(buffer)
		if err != nil {
			break
		}
		wire <- packet{time.Now().Add(delay), bytes.Clone(buffer[:n])}
	}
	close(wire)
	<-delivered
}

// Connect makes the connection and the join; what sees sockets begin must be open.
func (s *Pair) Connect(t *testing.T, server string) {
	t.Helper()
	remote := netip.AddrPortFrom(netip.MustParseAddr(server), 80)
	s.serve(t, remote)
	events := make(chan mptcp.Event, 64)
	s.Client.Must(t, func() (err error) {
		if s.Kernel, err = mptcp.Open(slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		return UserspacePM(s.Kernel)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Kernel.Listen(ctx, events) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, s.Kernel.Close()); err != nil {
			t.Error(err)
		}
	})
	s.Client.Must(t, func() error {
		var d net.Dialer
		d.SetMultipathTCP(true)
		c, err := d.DialContext(t.Context(), "tcp", remote.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		s.Conn = c
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	})
	established := nextOf(t, events, mptcp.Established)
	s.Token, s.First = established.Token, Ends{established.Local, established.Remote}
	local := netip.AddrPortFrom(established.Local.Addr(), 40001)
	if err := s.Kernel.CreateSubflow(mptcp.NewSubflow{Token: s.Token, Local: local, LocalID: 1, Remote: remote}); err != nil {
		t.Fatal(err)
	}
	nextOf(t, events, mptcp.SubflowEstablished)
	s.Join = Ends{local, remote}
}

func nextOf(t *testing.T, events <-chan mptcp.Event, kind mptcp.EventKind) mptcp.Event {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case ev := <-events:
			if ev.Kind == kind {
				return ev
			}
		case <-deadline:
			t.Fatalf("no event %v", kind)
		}
	}
}

func (s *Pair) serve(t *testing.T, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	s.Server.Must(t, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(true)
		l, err = lc.Listen(t.Context(), "tcp", at.String())
		return err
	})
	served, hangUp := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		copied := make(chan struct{})
		go func() { defer close(copied); _, _ = io.Copy(c, c) }()
		select {
		case <-copied:
		case <-hangUp:
			c.Close()
			<-copied
		}
	}()
	t.Cleanup(func() { l.Close(); close(hangUp); <-served })
}

// Swallow drops what reaches the server on a subflow.
func (s *Pair) Swallow(t *testing.T, p Ends) {
	s.Server.Output(t, "nft", fmt.Sprintf("table inet hole { chain in { type filter hook input priority 0; tcp sport %d drop; }; }", p.Local.Port()))
}

// Nudge has a subflow send a segment.
func (s *Pair) Nudge(t *testing.T, p Ends) {
	t.Helper()
	if err := s.Kernel.SetBackup(s.Token, p.Local, p.Remote, false); err != nil {
		t.Fatal(err)
	}
}

// Metrics returns a subflow's metrics.
func (s *Pair) Metrics(t *testing.T, p Ends) mptcp.Metrics {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		found, err := s.Kernel.Subflow(p.Local, p.Remote)
		if err == nil {
			return found.Metrics
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(deadline) { // a very busy machine answers late
			t.Fatal(err)
		}
	}
}

// Eventually waits for the metrics of a subflow to be as wanted.
func (s *Pair) Eventually(t *testing.T, p Ends, what string, ok func(mptcp.Metrics) bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok(s.Metrics(t, p)) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s\n%+v", what, s.Metrics(t, p))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
