package keepalive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a client with one connection to a server, and a join beside its first subflow.
type site struct {
	client, server *netnstest.NS
	kernel         *mptcp.Namespace
	token          uint32
	first, join    path
}

type path struct{ local, remote netip.AddrPort }

func newSite(t *testing.T, client, server string) *site {
	t.Helper()
	s := &site{client: netnstest.New(t), server: netnstest.New(t)}
	bits := "/24"
	if netip.MustParseAddr(client).Is6() {
		bits = "/64"
	}
	netnstest.Veth(t,
		netnstest.End{NS: s.client, Name: "eth0", Addresses: []string{client + bits}},
		netnstest.End{NS: s.server, Name: "eth0", Addresses: []string{server + bits}})
	return s
}

// connect makes the connection and the join; both must be up when the prober is.
func (s *site) connect(t *testing.T, server string) {
	t.Helper()
	remote := netip.AddrPortFrom(netip.MustParseAddr(server), 80)
	s.serve(t, remote)
	events := make(chan mptcp.Event, 64)
	s.client.Must(t, func() (err error) {
		if s.kernel, err = mptcp.Open(slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		return mptcptest.UserspacePM(s.kernel)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.kernel.Listen(ctx, events) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, s.kernel.Close()); err != nil {
			t.Error(err)
		}
	})
	s.client.Must(t, func() error {
		var d net.Dialer
		d.SetMultipathTCP(true)
		c, err := d.DialContext(t.Context(), "tcp", remote.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	})
	established := next(t, events, mptcp.Established)
	s.token, s.first = established.Token, path{established.Local, established.Remote}
	local := netip.AddrPortFrom(established.Local.Addr(), 40001)
	if err := s.kernel.CreateSubflow(mptcp.NewSubflow{Token: s.token, Local: local, LocalID: 1, Remote: remote}); err != nil {
		t.Fatal(err)
	}
	next(t, events, mptcp.SubflowEstablished)
	s.join = path{local, remote}
}

func next(t *testing.T, events <-chan mptcp.Event, kind mptcp.EventKind) mptcp.Event {
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

func (s *site) serve(t *testing.T, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	s.server.Must(t, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(true)
		l, err = lc.Listen(t.Context(), "tcp", at.String())
		return err
	})
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	t.Cleanup(func() { l.Close(); <-served })
}

// swallow drops what reaches the server on a subflow.
func (s *site) swallow(t *testing.T, p path) {
	s.server.Output(t, "nft", fmt.Sprintf("table inet hole { chain in { type filter hook input priority 0; tcp sport %d drop; }; }", p.local.Port()))
}

func (s *site) open(t *testing.T) (p *Prober) {
	t.Helper()
	s.client.Must(t, func() (err error) {
		p, err = Open("")
		if _, none := errors.AsType[*sockops.Error](err); none {
			t.Skipf("needs cgroup v2: %v", err)
		}
		return err
	})
	t.Cleanup(func() { p.Close() })
	return p
}

// nudge has a subflow send a segment.
func (s *site) nudge(t *testing.T, p path) {
	t.Helper()
	if err := s.kernel.SetBackup(s.token, p.local, p.remote, false); err != nil {
		t.Fatal(err)
	}
}

func (s *site) metrics(t *testing.T, p path) mptcp.Metrics {
	t.Helper()
	found, err := s.kernel.Subflow(p.local, p.remote)
	if err != nil {
		t.Fatal(err)
	}
	return found.Metrics
}

// eventually waits for the metrics of a subflow to be as wanted.
func (s *site) eventually(t *testing.T, p path, what string, ok func(mptcp.Metrics) bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok(s.metrics(t, p)) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s\n%+v", what, s.metrics(t, p))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Probes are sent on the subflow for which they are wanted, which may be the first one, and on no other.
func TestProbes(t *testing.T) {
	for _, c := range []struct{ name, client, server string }{
		{"IPv4", "10.0.1.2", "10.0.1.1"},
		{"IPv6", "2001:db8::2", "2001:db8::1"},
	} {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, first %v", c.name, first), func(t *testing.T) {
				s := newSite(t, c.client, c.server)
				p := s.open(t)
				s.connect(t, c.server)
				probed, other := s.join, s.first
				if first {
					probed, other = other, probed
				}
				idle := func(m mptcp.Metrics) bool { return m.LastAckRecv > 1500*time.Millisecond }
				s.eventually(t, probed, "nothing comes before there are probes", idle)
				s.eventually(t, other, "nothing comes before there are probes", idle)

				if err := p.Begin(probed.local, probed.remote); err != nil {
					t.Fatal(err)
				}
				s.nudge(t, probed)
				answered := s.metrics(t, probed).SegsIn + 2
				s.eventually(t, probed, "probes are answered", func(m mptcp.Metrics) bool { return m.SegsIn >= answered })
				if m := s.metrics(t, other); !idle(m) || m.Probes > 0 {
					t.Errorf("the other subflow is probed, too: %+v", m)
				}
				s.swallow(t, probed)
				s.eventually(t, probed, "probes have no answer", func(m mptcp.Metrics) bool { return m.Probes >= 2 })
				s.server.Output(t, "nft", "delete table inet hole")
				s.eventually(t, probed, "probes are answered again", func(m mptcp.Metrics) bool { return m.Probes == 0 })

				if err := p.End(probed.local, probed.remote); err != nil {
					t.Fatal(err)
				}
				s.nudge(t, probed)
				s.eventually(t, probed, "nothing comes when there are no probes any more", idle)
			})
		}
	}
}

// The agent's unit has no more.
func TestTwoCapabilitiesAreEnough(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		p, err := Open("")
		if _, none := errors.AsType[*sockops.Error](err); none {
			t.Skipf("needs cgroup v2: %v", err)
		}
		if err != nil {
			return err
		}
		return p.Close()
	})
}
