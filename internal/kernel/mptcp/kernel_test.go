package mptcp_test

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/internal/threehosts"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	serverPort  = 80
	firstDetour = 3000 // ports of the waypoint that lead to the server
	detours     = 3
)

// site is three hosts with a server that echoes and detours to it.
type site struct {
	*threehosts.Net
	server netip.AddrPort
}

func newSite(t testing.TB, six bool) *site {
	t.Helper()
	s := &site{Net: threehosts.New(t)}
	at := s.Server.IP4
	if six {
		at = s.Server.IP6
	}
	s.server = netip.AddrPortFrom(at, serverPort)
	s.Server.Listen(t, s.server)
	for i := range uint16(detours) {
		s.Forward(t, firstDetour+i, s.server)
	}
	return s
}

// open is the MPTCP of a host, with nothing listening yet.
func open(t testing.TB, h *threehosts.Host) *mptcp.Namespace {
	t.Helper()
	var n *mptcp.Namespace
	h.Do(t, func() (err error) {
		n, err = mptcp.Open(slog.New(slog.DiscardHandler))
		return err
	})
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return n
}

// watcher is the MPTCP of a host and its events.
type watcher struct {
	*mptcp.Namespace
	events chan mptcp.Event
}

func watch(t testing.TB, h *threehosts.Host) *watcher {
	t.Helper()
	w := &watcher{open(t, h), make(chan mptcp.Event, 256)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Listen(ctx, w.events) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Listen: %v", err)
		}
	})
	return w
}

// next is the next event, which must be of the given kind.
func (w *watcher) next(t testing.TB, kind mptcp.EventKind) mptcp.Event {
	t.Helper()
	select {
	case ev := <-w.events:
		if ev.Kind != kind {
			t.Fatalf("event %v, want %v", ev, kind)
		}
		return ev
	case <-time.After(10 * time.Second):
		t.Fatalf("no event %v", kind)
		panic("unreachable")
	}
}

func TestKernelConforms(t *testing.T) {
	for _, family := range []string{"IPv4", "IPv6", "IPv4 through an IPv6 socket"} {
		t.Run(family, func(t *testing.T) {
			mptcptest.Conformance(t, func(t *testing.T) mptcptest.Bench {
				return bench(t, family)
			})
		})
	}
}

func bench(t *testing.T, family string) mptcptest.Bench {
	six := family == "IPv6"
	s := newSite(t, six)
	kernel := open(t, s.Client)
	b := mptcptest.Bench{
		Kernel: kernel,
		Local:  s.Client.IP4, Other: s.Client.IP6,
		UserspacePM: func(t *testing.T) func() { return s.Client.UserspacePM(t, kernel.UserspacePMSysctl) },
		Dial: func(t *testing.T) func() {
			dial := s.Client.Dial
			if family == "IPv4 through an IPv6 socket" {
				dial = s.Client.DialMapped
			}
			c := dial(t, s.server)
			threehosts.Echo(t, c, "hello")
			return func() { c.Close() }
		},
	}
	waypoint, nowhere := s.Waypoint.IP4, "198.51.100.0/24"
	b.Silent = netip.MustParseAddrPort("198.51.100.1:80")
	if six {
		b.Local, b.Other = b.Other, b.Local
		waypoint, nowhere = s.Waypoint.IP6, "2001:db8:dead::/48"
		b.Silent = netip.MustParseAddrPort("[2001:db8:dead::1]:80")
	}
	s.Router.Run(t, "", "ip", "route", "add", "blackhole", nowhere)
	for i := range b.Detours {
		b.Detours[i] = netip.AddrPortFrom(waypoint, firstDetour+uint16(i))
	}
	b.Closed = netip.AddrPortFrom(waypoint, 9)
	return b
}

// limited reports that the running kernel has the limit.
func limited(t *testing.T, l mptcp.Limit) bool {
	t.Helper()
	limits, err := mptcp.Limits()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(limits, l)
}
