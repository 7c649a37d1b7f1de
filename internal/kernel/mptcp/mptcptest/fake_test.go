package mptcptest

import (
	"context"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	client   = netip.MustParseAddr("10.0.0.2")
	server   = netip.MustParseAddrPort("198.51.100.1:443")
	waypoint = netip.MustParseAddrPort("192.0.2.7:30001")
)

func TestFakeConforms(t *testing.T) {
	Conformance(t, func(*testing.T) Bench {
		f := New()
		closed, silent := netip.MustParseAddrPort("192.0.2.8:1"), netip.MustParseAddrPort("192.0.2.9:1")
		f.SetWay(closed, Refused)
		f.SetWay(silent, Silent)
		b := Bench{
			Kernel: f, Local: client, Other: netip.MustParseAddr("2001:db8::2"),
			Closed: closed, Silent: silent,
			UserspacePM: func(*testing.T) func() {
				f.SetUserspacePM(true)
				return func() { f.SetUserspacePM(false) }
			},
			Dial: func(*testing.T) func() {
				token := f.Connect(client, server)
				return func() { f.Close(token) }
			},
		}
		for i := range b.Detours {
			b.Detours[i] = netip.AddrPortFrom(waypoint.Addr(), waypoint.Port()+uint16(i))
		}
		return b
	})
}

// drain is the events that have happened.
func drain(f *Fake) []string {
	var got []string
	ctx, cancel := context.WithCancel(context.Background())
	events := make(chan mptcp.Event)
	end := mptcp.EventKind(1000)
	f.mu.Lock()
	f.emit(mptcp.Event{Kind: end})
	f.mu.Unlock()
	done := make(chan error)
	go func() { done <- f.Listen(ctx, events) }()
	for ev := range events {
		if ev.Kind == end {
			break
		}
		got = append(got, ev.String())
	}
	cancel()
	<-done
	return got
}

func TestRendering(t *testing.T) {
	f := New()
	f.SetUserspacePM(true)
	token := f.Connect(client, server)
	f.Accept(netip.AddrPortFrom(client, 80), netip.MustParseAddrPort("203.0.113.5:1234"))
	silent := netip.MustParseAddrPort("192.0.2.9:1")
	f.SetWay(silent, Silent)
	for _, s := range []mptcp.NewSubflow{{Remote: waypoint, Backup: true}, {Remote: silent}} {
		s.Token, s.Local, s.LocalID = token, netip.AddrPortFrom(client, 0), 1
		if err := f.CreateSubflow(s); err != nil {
			t.Fatal(err)
		}
	}
	want := `pm userspace
connection 00000101 to 198.51.100.1:443
  10.0.0.2:40001 > 198.51.100.1:443 id 0
  10.0.0.2:40002 > 192.0.2.7:30001 id 1 backup
  10.0.0.2:40003 > 192.0.2.9:1 id 1 SYN_SENT
connection 00000102 from 203.0.113.5:1234
  10.0.0.2:80 > 203.0.113.5:1234 id 0
`
	if diff := cmp.Diff(want, f.String()); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}

func TestLosingEvents(t *testing.T) {
	f := New()
	var token uint32
	f.LoseEvents(func() { token = f.Connect(client, server) })
	f.Close(token)
	want := []string{"EVENTS_LOST", "CLOSED token=00000101"}
	if diff := cmp.Diff(want, drain(f)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestTheWorldAround(t *testing.T) {
	f := New()
	f.SetUserspacePM(true)
	f.SetServerLimit(0)
	token := f.ConnectDenied(client, server)
	f.Advertise(token, netip.MustParseAddrPort("198.51.100.2:443"), 3)
	f.Withdraw(token, 3)
	s := mptcp.NewSubflow{Token: token, Local: netip.AddrPortFrom(client, 0), LocalID: 1, Remote: waypoint}
	if err := f.CreateSubflow(s); err != nil {
		t.Fatal(err)
	}
	f.Break(token, netip.AddrPortFrom(client, 40001), syscall.ECONNRESET)
	f.RemoveLocal(client)
	if err := f.CreateSubflow(s); err == nil {
		t.Error("a subflow was created from an address that is gone")
	}
	want := []string{
		"CREATED token=00000101 local=10.0.0.2:40001 remote=198.51.100.1:443 deny-join-initial",
		"ESTABLISHED token=00000101 local=10.0.0.2:40001 remote=198.51.100.1:443 deny-join-initial",
		"ANNOUNCED token=00000101 remote=198.51.100.2:443 id=3",
		"REMOVED token=00000101 id=3",
		"SUB_ESTABLISHED token=00000101 local=10.0.0.2:40002 remote=192.0.2.7:30001 ids=1/0",
		"SUB_CLOSED token=00000101 local=10.0.0.2:40002 remote=192.0.2.7:30001 ids=1/0",
		`SUB_CLOSED token=00000101 local=10.0.0.2:40001 remote=198.51.100.1:443 ids=0/0 err="connection reset by peer"`,
	}
	if diff := cmp.Diff(want, drain(f)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestMetrics(t *testing.T) {
	f := New()
	f.Connect(client, server)
	local := netip.AddrPortFrom(client, 40001)
	f.SetMetrics(local, server, mptcp.Metrics{BytesAcked: 7})
	s, err := f.Subflow(local, server)
	if err != nil || s.Metrics.BytesAcked != 7 {
		t.Errorf("bytes acknowledged %d (error %v), want 7", s.Metrics.BytesAcked, err)
	}
}
