package waypoint

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// joining is a client with an MPTCP connection on a direct path to the server, which a waypoint can
// reach too.
type joining struct {
	*network
	w      *Waypoint
	server netip.AddrPort

	pm     *mptcp.Namespace
	events chan mptcp.Event
	conn   net.Conn
	in     *bufio.Reader
	token  uint32
}

func newJoining(t *testing.T, mode InBandMode) *joining {
	t.Helper()
	j := &joining{network: newNetwork(t), events: make(chan mptcp.Event, 100)}
	netnstest.Veth(t,
		netnstest.End{NS: j.client, Name: "direct", Addresses: []string{"10.3.0.1/24"}},
		netnstest.End{NS: j.network.server, Name: "direct", Addresses: []string{"10.3.0.2/24"}})
	j.waypoint.Route(t, "10.3.0.0/24", "10.2.0.1")
	j.config.Allow = []netip.Prefix{netip.MustParsePrefix("10.3.0.2/32")}
	j.config.InBand = mode
	j.server = j.echo(t, "10.3.0.2:443")
	j.w, _ = j.start(t)

	j.client.Must(t, func() (err error) {
		if j.pm, err = mptcp.Open(slog.New(slog.DiscardHandler)); err == nil {
			err = mptcptest.UserspacePM(j.pm)
		}
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	listening := make(chan error, 1)
	go func() { listening <- j.pm.Listen(ctx, j.events) }()
	t.Cleanup(func() {
		cancel()
		if err := <-listening; err != nil {
			t.Error(err)
		}
		j.pm.Close()
	})
	j.connect(t)
	return j
}

func (j *joining) connect(t *testing.T) {
	t.Helper()
	j.client.Must(t, func() (err error) {
		var d net.Dialer
		d.SetMultipathTCP(true)
		j.conn, err = d.DialContext(t.Context(), "tcp", j.server.String())
		return err
	})
	t.Cleanup(func() { _ = j.conn.Close() })
	_ = j.conn.SetDeadline(time.Now().Add(30 * time.Second))
	j.in = bufio.NewReader(j.conn)
	if _, err := j.in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if _, err := j.conn.Write([]byte("x")); err != nil { // its acknowledgement establishes the connection
		t.Fatal(err)
	}
	j.token = j.await(t, mptcp.Established).Token
}

func (j *joining) await(t *testing.T, kind mptcp.EventKind) mptcp.Event {
	t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		select {
		case e := <-j.events:
			if e.Kind == kind {
				return e
			}
		case <-timeout:
			t.Fatalf("no %v", kind)
		}
	}
}

// join adds a subflow, and then makes it the connection's only one.
func (j *joining) join(t *testing.T, local, remote netip.AddrPort) {
	t.Helper()
	err := j.pm.CreateSubflow(mptcp.NewSubflow{Token: j.token, Local: local, LocalID: 1, Remote: remote})
	if err != nil {
		t.Fatal(err)
	}
	if up := j.await(t, mptcp.SubflowEstablished); up.Remote != remote {
		t.Errorf("subflow %+v", up)
	}
	j.client.Output(t, "ip", "link", "set", "direct", "down")
	const sent = 1 << 20
	go func() { _, _ = j.conn.Write(make([]byte, sent)) }()
	if _, err := io.CopyN(io.Discard, j.in, sent+1); err != nil {
		t.Fatalf("over the detour alone: %v", err)
	}
	s, err := j.w.Snapshot()
	if err != nil || s.Members[0].Flows != 1 || s.Members[0].BytesFromClient < sent || s.Members[0].BytesToClient < sent {
		t.Errorf("snapshot %+v, %v", s, err)
	}
}

// The main use: a connection on the direct path gets a second subflow through the waypoint, and survives on it
// when the direct path fails.
func TestMPTCPJoinsThroughAMapping(t *testing.T) {
	t.Parallel()
	j := newJoining(t, InBandOff)
	grant := mustMap(t, j.w, peer("alice", client4), j.server, 443)
	j.join(t, netip.AddrPortFrom(client4, 0), netip.AddrPortFrom(waypoint4, grant.Port))
}

// The same without a request for this server: the SYN names it.
func TestMPTCPJoinsInBand(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJoining(t, mode)
			if ok, why := j.w.OffersInBand(); !ok {
				t.Skip(why)
			}
			var sender *inband.Sender
			var out int
			j.client.Must(t, func() (err error) {
				if sender, err = inband.OpenSender(inband.SenderConfig{}); err != nil {
					return err
				}
				eth0, err := net.InterfaceByName("eth0")
				if err == nil {
					out = eth0.Index
				}
				return err
			})
			defer sender.Close()
			if err := sender.Attach([]int{out}); err != nil {
				t.Fatal(err)
			}
			alice := overSession("alice", client4, 1)
			j.w.SessionUp(alice)
			grant := mustInBand(t, j.w, alice)
			expect := inband.Join{Local: netip.AddrPortFrom(client4, 45678), Remote: netip.AddrPortFrom(waypoint4, j.server.Port()), Server: j.server.Addr()}
			if len(grant.Key) > 0 {
				expect.Auth = &inband.Auth{Key: inband.Key(grant.Key), Client: grant.Client, ClientPort: grant.ClientPort}
			}
			if err := sender.Expect(expect); err != nil {
				t.Fatal(err)
			}
			j.join(t, expect.Local, expect.Remote)
		})
	}
}
