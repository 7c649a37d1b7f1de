package mptcp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/mptcp/internal/threehosts"
)

func openOn(t testing.TB, h *threehosts.Host) *Namespace {
	t.Helper()
	var n *Namespace
	h.Do(t, func() (err error) {
		n, err = Open(slog.New(slog.DiscardHandler))
		return err
	})
	t.Cleanup(func() { n.Close() }) // a test may have closed it already
	return n
}

// Events that do not fit the kernel's queue are reported as lost, and what
// they told of is found by Connections.
func TestEventsLost(t *testing.T) {
	net := threehosts.New(t)
	at := netip.AddrPortFrom(net.Server.IP4, 80)
	net.Server.Listen(t, at)
	n := openOn(t, net.Client)
	raw, err := n.events.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
	if err != nil {
		t.Fatal(err)
	}
	const connections = 20
	for range connections {
		threehosts.Echo(t, net.Client.Dial(t, at), "hello")
	}
	ctx, cancel := context.WithCancel(context.Background())
	events := make(chan Event)
	done := make(chan error)
	go func() { done <- n.Listen(ctx, events) }()
	timeout := time.After(10 * time.Second)
	for lost := false; !lost; {
		select {
		case ev := <-events:
			lost = ev.Kind == EventsLost
		case <-timeout:
			t.Fatal("no event tells that events were lost")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Listen: %v", err)
	}
	conns, err := n.Connections()
	if err != nil || len(conns) != connections {
		t.Errorf("%d connections (error %v), want %d", len(conns), err, connections)
	}
}

// A Namespace that is closed ends Listen with an error.
func TestCloseEndsListen(t *testing.T) {
	net := threehosts.New(t)
	n := openOn(t, net.Client)
	done := make(chan error)
	go func() { done <- n.Listen(context.Background(), make(chan Event)) }()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("Listen ended without an error")
	}
}

// A protocol without socket diagnostics is told from one without sockets.
func TestDiagMissing(t *testing.T) {
	d, err := openDiag()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	const none = 250
	err = d.dumpConnections(none, func(*Connection) bool { return true })
	if !errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v, want %v", err, ErrUnsupported)
	}
}

// BenchmarkConnections is the life of one connection with one detour: what the
// kernel, the programs at both ends and we together spend on it.
func BenchmarkConnections(b *testing.B) {
	hosts := threehosts.New(b)
	at := netip.AddrPortFrom(hosts.Server.IP4, 80)
	hosts.Server.Listen(b, at)
	hosts.Forward(b, 3000, at)
	n := openOn(b, hosts.Client)
	hosts.Client.UserspacePM(b, n.UserspacePMSysctl)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events := make(chan Event, 1024)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.Listen(ctx, events); err != nil {
			b.Error(err)
		}
	})
	b.ResetTimer()
	hosts.Client.Do(b, func() error {
		var d net.Dialer
		d.SetMultipathTCP(true)
		buf := make([]byte, 5)
		for range b.N {
			c, err := d.Dial("tcp", at.String())
			if err != nil {
				return err
			}
			if _, err := c.Write(buf); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
			for ev := range events {
				if ev.Kind == SubflowEstablished {
					break
				}
				if ev.Kind != Established {
					continue
				}
				err := n.CreateSubflow(NewSubflow{
					Token: ev.Token, Local: netip.AddrPortFrom(hosts.Client.IP4, 0), LocalID: 1,
					Remote: netip.AddrPortFrom(hosts.Waypoint.IP4, 3000),
				})
				if err != nil {
					return err
				}
			}
			c.Close()
		}
		return nil
	})
	b.StopTimer()
	cancel()
	wg.Wait()
}

// BenchmarkListen is what reading a thousand events costs, from the kernel's
// queue to the channel.
func BenchmarkListen(b *testing.B) {
	const batch = 1000
	hosts := threehosts.New(b)
	at := netip.AddrPortFrom(hosts.Server.IP4, 80)
	hosts.Server.Listen(b, at)
	client := openOn(b, hosts.Client)
	hosts.Client.UserspacePM(b, client.UserspacePMSysctl)
	threehosts.Echo(b, hosts.Client.Dial(b, at), "hello")
	conns, err := client.Connections()
	if err != nil || len(conns) != 1 {
		b.Fatal(conns, err)
	}
	initial := conns[0].Subflows[0]
	b.ReportAllocs()
	for range b.N {
		b.StopTimer()
		server := openOn(b, hosts.Server)
		for i := range batch {
			if err := client.SetBackup(initial.Token, initial.Local, initial.Remote, i%2 == 0); err != nil {
				b.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		events := make(chan Event, batch)
		done := make(chan error)
		b.StartTimer()
		go func() { done <- server.Listen(ctx, events) }()
		for range batch {
			<-events
		}
		b.StopTimer()
		cancel()
		if err := errors.Join(<-done, server.Close()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/event")
}

// BenchmarkDump is a list of all subflows of a host with a thousand connections.
func BenchmarkDump(b *testing.B) {
	const connections = 1000
	hosts := threehosts.New(b)
	at := netip.AddrPortFrom(hosts.Server.IP4, 80)
	hosts.Server.Listen(b, at)
	n := openOn(b, hosts.Client)
	hosts.Client.Do(b, func() error {
		var d net.Dialer
		d.SetMultipathTCP(true)
		for range connections {
			c, err := d.Dial("tcp", at.String())
			if err != nil {
				return err
			}
			b.Cleanup(func() { c.Close() })
		}
		return nil
	})
	b.ReportAllocs()
	for b.Loop() {
		found := 0
		err := n.Subflows(func(*Subflow) bool {
			found++
			return true
		})
		if err != nil || found != connections {
			b.Fatalf("%d subflows (error %v), want %d", found, err, connections)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/connections, "ns/subflow")
}

// BenchmarkSubflow is the look-up of one subflow with its metrics.
func BenchmarkSubflow(b *testing.B) {
	hosts := threehosts.New(b)
	at := netip.AddrPortFrom(hosts.Server.IP4, 80)
	hosts.Server.Listen(b, at)
	n := openOn(b, hosts.Client)
	c := hosts.Client.Dial(b, at)
	local := c.LocalAddr().(*net.TCPAddr).AddrPort()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.Subflow(local, at); err != nil {
			b.Fatal(err)
		}
	}
}
