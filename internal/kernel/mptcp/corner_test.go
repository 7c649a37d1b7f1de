package mptcp_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/internal/threehosts"
)

// The tests in this file hold docs/kernel-behaviour.md to the truth: what no fake need
// do, and what may change with the kernel.

// connected is a site with one established connection, managed from userspace.
type connected struct {
	*site
	client *watcher
	conn   net.Conn
	token  uint32
	local  netip.AddrPort

	toKernel func() // gives new sockets back
}

func connect(t *testing.T) *connected {
	t.Helper()
	s := newSite(t, false)
	c := &connected{site: s, client: watch(t, s.Client)}
	c.toKernel = s.Client.UserspacePM(t, c.client.UserspacePMSysctl)
	c.conn = s.Client.Dial(t, s.server)
	threehosts.Echo(t, c.conn, "hello")
	c.client.next(t, mptcp.Created)
	ev := c.client.next(t, mptcp.Established)
	c.token, c.local = ev.Token, ev.Local
	return c
}

func (c *connected) detour(i uint16) netip.AddrPort {
	return netip.AddrPortFrom(c.Waypoint.IP4, firstDetour+i)
}

// join creates a subflow and waits until it is up.
func (c *connected) join(t *testing.T, s mptcp.NewSubflow) mptcp.Event {
	t.Helper()
	s.Token = c.token
	if err := c.client.CreateSubflow(s); err != nil {
		t.Fatal(err)
	}
	return c.client.next(t, mptcp.SubflowEstablished)
}

func (c *connected) destroy(t *testing.T, local, remote netip.AddrPort) {
	t.Helper()
	if err := c.client.DestroySubflow(c.token, local, remote); err != nil {
		t.Fatal(err)
	}
	c.client.next(t, mptcp.SubflowClosed)
}

// A lost address: no event; its subflows are destroyed here, and the server,
// which cannot hear of that on them, is told by Announce and RemoveAddress over
// a subflow from the new address.
func TestLocalAddressLost(t *testing.T) {
	c := connect(t)
	server := watch(t, c.Server)
	up := c.join(t, mptcp.NewSubflow{Local: netip.AddrPortFrom(c.Client.IP4, 0), LocalID: 1, Remote: c.detour(0)})

	c.Router.Run(t, "", "ip", "address", "add", "10.0.4.1/24", "dev", "to-client")
	c.Client.AddAddress(t, "10.0.4.2/24")
	c.Client.RemoveAddress(t, c.Client.IP4.String()+"/24")
	c.Client.Run(t, "", "ip", "route", "replace", "default", "via", "10.0.4.1")

	c.destroy(t, up.Local, up.Remote)
	c.destroy(t, c.local, c.server)
	c.join(t, mptcp.NewSubflow{Local: netip.MustParseAddrPort("10.0.4.2:0"), LocalID: 2, Remote: c.server})
	threehosts.Echo(t, c.conn, "over the new address")

	server.next(t, mptcp.SubflowEstablished) // the detour
	server.next(t, mptcp.SubflowEstablished) // the one from the new address
	if err := c.client.Announce(c.token, netip.AddrPortFrom(c.Client.IP4, 0), 1); err != nil {
		t.Fatal(err)
	}
	if err := c.client.RemoveAddress(c.token, 1); err != nil {
		t.Fatal(err)
	}
	server.next(t, mptcp.Announced)
	server.next(t, mptcp.Removed)
	if ev := server.next(t, mptcp.SubflowClosed); ev.Remote.Port() != up.Local.Port() {
		t.Errorf("the server closed %v, want the lost detour from port %d", ev, up.Local.Port())
	}
}

// Distinct local ports make distinct ids of one address possible.
func TestIDsByPort(t *testing.T) {
	c := connect(t)
	for i, id := range []uint8{1, 2} {
		ev := c.join(t, mptcp.NewSubflow{
			Local: netip.AddrPortFrom(c.Client.IP4, 5000+uint16(i)), LocalID: id, Remote: c.detour(uint16(i)),
		})
		if ev.LocalID != id || ev.Local.Port() != 5000+uint16(i) {
			t.Errorf("event %v, want id %d and port %d", ev, id, 5000+i)
		}
	}
}

// A subflow bound to an interface is found like any other.
func TestSubflowBoundToInterface(t *testing.T) {
	c := connect(t)
	var index int
	c.Client.Do(t, func() error {
		i, err := net.InterfaceByName("eth0")
		index = i.Index
		return err
	})
	bound := mptcp.NewSubflow{Local: netip.AddrPortFrom(c.Client.IP4, 0), LocalID: 1, Remote: c.detour(0), IfIndex: index}
	if limited(t, mptcp.JoinFlags) {
		bound.Token = c.token
		if err := c.client.CreateSubflow(bound); !errors.Is(err, mptcp.ErrUnsupported) {
			t.Errorf("error %v, want it to be unsupported", err)
		}
		return
	}
	up := c.join(t, bound)
	s, err := c.client.Subflow(up.Local, up.Remote)
	if err != nil || s.IfIndex != index || up.IfIndex != index {
		t.Errorf("subflow %+v, event %v, error %v; want interface %d", s, up, err, index)
	}
}

// The only subflow can be destroyed and the connection still be saved.
func TestConnectionWithoutSubflows(t *testing.T) {
	c := connect(t)
	c.destroy(t, c.local, c.server)
	c.join(t, mptcp.NewSubflow{Local: netip.AddrPortFrom(c.Client.IP4, 0), LocalID: 1, Remote: c.detour(0)})
	threehosts.Echo(t, c.conn, "still here")
	conns, err := c.client.Connections()
	if err != nil || len(conns) != 1 {
		t.Fatalf("connections %+v, error %v", conns, err)
	}
	if got := conns[0]; got.Remote != c.server || got.Local != c.local || got.ServerSide {
		t.Errorf("connection %+v, want from %v to %v as at first", got, c.local, c.server)
	}
}

// Closed comes when the program closes, also while the server is out of reach
// and data is undelivered, and Connections agrees.
func TestClosedWithDataUndelivered(t *testing.T) {
	c := connect(t)
	c.Router.Run(t, "", "ip", "route", "replace", "blackhole", c.Server.IP4.String()+"/32")
	if _, err := c.conn.Write([]byte("never delivered")); err != nil {
		t.Fatal(err)
	}
	c.conn.Close()
	c.client.next(t, mptcp.Closed)
	conns, err := c.client.Connections()
	if err != nil || len(conns) != 0 {
		t.Errorf("connections %+v, error %v; want none", conns, err)
	}
}

// A connection that the server resets does not exist any more, but no Closed comes, not even when the program closes.
func TestNoClosedAfterReset(t *testing.T) {
	s := newSite(t, false)
	client, at := watch(t, s.Client), netip.AddrPortFrom(s.Server.IP4, serverPort+1)
	s.Server.ListenReset(t, at)
	conn := s.Client.Dial(t, at)
	client.next(t, mptcp.Created)
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	token := client.next(t, mptcp.Established).Token
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the program got %v", err)
	}
	conn.Close()
	if open, err := client.Open(token); !errors.Is(err, mptcp.ErrNoConnection) {
		t.Errorf("open %v, error %v", open, err)
	}
	select {
	case ev := <-client.events:
		t.Errorf("%v", ev)
	case <-time.After(300 * time.Millisecond):
	}
}

// Gap shows that segments wait for one that was lost, until that arrives.
func TestGap(t *testing.T) {
	c := connect(t)
	gap := func(want bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			switch s, err := c.client.Subflow(c.local, c.server); {
			case err != nil:
				t.Fatal(err)
			case s.Metrics.Gap == want:
				return
			case time.Now().After(deadline):
				t.Fatalf("gap %v, want %v: %+v", !want, want, s.Metrics)
			}
		}
	}
	gap(false)
	c.Router.Run(t, "", "nft", `table ip lossy { chain c { type filter hook forward priority 0; tcp sport 80 @ih,0,16 0x4141 drop; }; }`)
	lost := strings.Repeat("A", 1000)
	for _, data := range []string{lost, "B"} {
		if _, err := c.conn.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // the two are not one segment
	}
	gap(true)
	c.Router.Run(t, "", "nft", "delete table ip lossy")
	got := make([]byte, len(lost)+1)
	if _, err := io.ReadFull(c.conn, got); err != nil || string(got) != lost+"B" {
		t.Fatalf("received %q, error %v", got, err)
	}
	gap(false)
}

// A local refusal of the join is an error of the command, not an event.
func TestCreateRefusedLocally(t *testing.T) {
	c := connect(t)
	c.Client.Run(t, "", "ip", "route", "add", "unreachable", "203.0.113.0/24")
	for _, tc := range []struct {
		local, remote string
		want          syscall.Errno
	}{
		{"10.0.1.2:0", "203.0.113.1:80", syscall.EHOSTUNREACH},
		{"10.9.9.9:0", "10.0.2.2:3000", syscall.EADDRNOTAVAIL},
	} {
		err := c.client.CreateSubflow(mptcp.NewSubflow{
			Token: c.token, Local: netip.MustParseAddrPort(tc.local), LocalID: 1, Remote: netip.MustParseAddrPort(tc.remote),
		})
		if !errors.Is(err, tc.want) {
			t.Errorf("create from %s to %s: %v, want %v", tc.local, tc.remote, err, tc.want)
		}
	}
}

// The peer sees priority and addresses change.
func TestServerSide(t *testing.T) {
	s := newSite(t, false)
	client, server := open(t, s.Client), watch(t, s.Server)
	s.Client.UserspacePM(t, client.UserspacePMSysctl)
	threehosts.Echo(t, s.Client.Dial(t, s.server), "hello")
	for _, kind := range []mptcp.EventKind{mptcp.Created, mptcp.Established} {
		if ev := server.next(t, kind); !ev.ServerSide || ev.Local != s.server {
			t.Errorf("event %v, want server-side at %v", ev, s.server)
		}
	}
	conns, err := client.Connections()
	if err != nil || len(conns) != 1 {
		t.Fatalf("connections %+v, error %v", conns, err)
	}
	err = client.CreateSubflow(mptcp.NewSubflow{
		Token: conns[0].Token, Local: netip.AddrPortFrom(s.Client.IP4, 0), LocalID: 1,
		Remote: netip.AddrPortFrom(s.Waypoint.IP4, firstDetour), Backup: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	up := server.next(t, mptcp.SubflowEstablished)
	if up.RemoteID != 1 {
		t.Errorf("event %v, want remote id 1", up)
	}
	if limited(t, mptcp.JoinFlags) {
		up = server.next(t, mptcp.SubflowPriority)
	}
	if !up.Backup {
		t.Errorf("event %v, want a backup", up)
	}
	detour, err := server.Subflow(up.Local, up.Remote)
	if err != nil || !detour.ServerSide || !detour.BackupRemote {
		t.Errorf("subflow %+v, error %v; want a backup opened by the peer", detour, err)
	}
	err = client.SetBackup(conns[0].Token, netip.AddrPortFrom(s.Client.IP4, up.Remote.Port()),
		netip.AddrPortFrom(s.Waypoint.IP4, firstDetour), false)
	if err != nil {
		t.Fatal(err)
	}
	if ev := server.next(t, mptcp.SubflowPriority); ev.Backup {
		t.Errorf("event %v, want no backup", ev)
	}
	if conns, err := server.Connections(); err != nil || len(conns) != 1 || !conns[0].ServerSide {
		t.Errorf("connections %+v, error %v; want one, accepted", conns, err)
	}
}

// A second agent, after the first is gone, finds the connections and can act.
func TestAdoption(t *testing.T) {
	c := connect(t)
	c.join(t, mptcp.NewSubflow{Local: netip.AddrPortFrom(c.Client.IP4, 0), LocalID: 1, Remote: c.detour(0)})
	c.toKernel()
	second := watch(t, c.Client)
	conns, err := second.Connections()
	if err != nil || len(conns) != 1 || len(conns[0].Subflows) != 2 {
		t.Fatalf("connections %+v, error %v; want one with two subflows", conns, err)
	}
	got := conns[0]
	if got.Token != c.token || got.ServerSide || got.Fallback {
		t.Errorf("connection %+v, want %08x, opened here", got, c.token)
	}
	want := mptcp.Traffic{BytesSent: 5, BytesReceived: 5, BytesAcked: 5}
	if limited(t, mptcp.ByteCounters) {
		want = mptcp.Traffic{}
	}
	if got.Traffic != want {
		t.Errorf("traffic %+v, want %+v", got.Traffic, want)
	}
	initial := slices.IndexFunc(got.Subflows, func(s mptcp.Subflow) bool { return s.Initial })
	if initial < 0 {
		t.Fatalf("subflows %+v: no initial one", got.Subflows)
	}
	m := got.Subflows[initial].Metrics
	if m.BytesSent != 5 || m.BytesReceived != 5 || m.RTT <= 0 || m.RTT > 10*time.Second || m.SndCwnd == 0 || m.SndMSS == 0 {
		t.Errorf("metrics %+v after 5 bytes each way", m)
	}
	err = second.CreateSubflow(mptcp.NewSubflow{
		Token: got.Token, Local: netip.AddrPortFrom(c.Client.IP4, 0), LocalID: 1, Remote: c.detour(1),
	})
	if err != nil {
		t.Fatal(err)
	}
	second.next(t, mptcp.SubflowEstablished)
}

// A server without MPTCP: no event, and the connection is marked.
func TestFallback(t *testing.T) {
	s := newSite(t, false)
	client := watch(t, s.Client)
	s.Server.Sysctl(t, "net/mptcp/enabled", "0")
	plain := netip.AddrPortFrom(s.Server.IP4, 81)
	s.Server.Listen(t, plain)
	threehosts.Echo(t, s.Client.Dial(t, plain), "hello")
	conns, err := client.Connections()
	if err != nil || len(conns) != 1 || !conns[0].Fallback || conns[0].Established {
		t.Errorf("connections %+v, error %v; want one, fallen back", conns, err)
	}
	var fallen []mptcp.Connection
	err = client.Fallbacks(func(c *mptcp.Connection) bool { fallen = append(fallen, *c); return true })
	if err != nil || len(fallen) != 1 || fallen[0].Remote != plain {
		t.Fatalf("fallen back: %+v, error %v; want one", fallen, err)
	}
	if s, err := client.Subflow(fallen[0].Local, plain); err != nil || s.ServerSide {
		t.Errorf("its subflow: %+v, error %v", s, err)
	}
	select {
	case ev := <-client.events:
		t.Errorf("event %v of a connection to a server without MPTCP", ev)
	case <-time.After(50 * time.Millisecond):
	}
}

// Established needs data: the peer's acknowledgement of it proves that MPTCP
// options pass (RFC 8684, 3.1).
func TestEstablishedAfterData(t *testing.T) {
	s := newSite(t, false)
	client := watch(t, s.Client)
	conn := s.Client.Dial(t, s.server)
	client.next(t, mptcp.Created)
	for _, want := range []bool{false, true} {
		conns, err := client.Connections()
		if err != nil || len(conns) != 1 || conns[0].Established != want {
			t.Errorf("connections %+v, error %v; want one, established: %v", conns, err, want)
		}
		if want {
			break
		}
		threehosts.Echo(t, conn, "hello")
		client.next(t, mptcp.Established)
	}
}
