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

	"github.com/detour-collective/dcol/internal/mptcp"
	"github.com/detour-collective/dcol/internal/netstate/netnstest"
)

// What all this is for: a connection on the direct path gets a second subflow through the waypoint,
// and lives on over it when the direct path dies.
func TestMPTCPJoinsThroughAMapping(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	netnstest.Veth(t,
		netnstest.End{NS: n.client, Name: "direct", Addresses: []string{"10.3.0.1/24"}},
		netnstest.End{NS: n.server, Name: "direct", Addresses: []string{"10.3.0.2/24"}})
	n.waypoint.Route(t, "10.3.0.0/24", "10.2.0.1")
	n.config.Allow = []netip.Prefix{netip.MustParsePrefix("10.3.0.2/32")}
	server := n.echo(t, "10.3.0.2:443")
	w, _ := n.start(t)
	grant := mustMap(t, w, peer("alice", client4), server, 443)

	var pm *mptcp.Namespace
	n.client.Must(t, func() (err error) {
		if pm, err = mptcp.Open(slog.New(slog.DiscardHandler)); err == nil {
			_, err = pm.AcquireUserspacePM()
		}
		return err
	})
	events := make(chan mptcp.Event, 100)
	ctx, cancel := context.WithCancel(context.Background())
	listening := make(chan error, 1)
	go func() { listening <- pm.Listen(ctx, events) }()
	defer func() {
		cancel()
		if err := <-listening; err != nil {
			t.Error(err)
		}
		pm.Close()
	}()
	await := func(kind mptcp.EventKind) mptcp.Event {
		t.Helper()
		for timeout := time.After(20 * time.Second); ; {
			select {
			case e := <-events:
				if e.Kind == kind {
					return e
				}
			case <-timeout:
				t.Fatalf("no %v", kind)
			}
		}
	}

	var c net.Conn
	n.client.Must(t, func() (err error) {
		var d net.Dialer
		d.SetMultipathTCP(true)
		c, err = d.DialContext(ctx, "tcp", server.String())
		return err
	})
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(c)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil { // its acknowledgement establishes the connection
		t.Fatal(err)
	}
	established := await(mptcp.Established)
	err := pm.CreateSubflow(mptcp.NewSubflow{Token: established.Token, Local: netip.AddrPortFrom(client4, 0), LocalID: 1,
		Remote: netip.AddrPortFrom(waypoint4, grant.Port)})
	if err != nil {
		t.Fatal(err)
	}
	if up := await(mptcp.SubflowEstablished); up.Remote != netip.AddrPortFrom(waypoint4, grant.Port) {
		t.Errorf("subflow %+v", up)
	}

	n.client.Output(t, "ip", "link", "set", "direct", "down")
	const sent = 1 << 20
	go func() { _, _ = c.Write(make([]byte, sent)) }()
	if _, err := io.CopyN(io.Discard, in, sent+1); err != nil {
		t.Fatalf("over the detour alone: %v", err)
	}
	s, err := w.Snapshot()
	if err != nil || s.Members[0].Flows != 1 || s.Members[0].BytesFromClient < sent || s.Members[0].BytesToClient < sent {
		t.Errorf("snapshot %+v, %v", s, err)
	}
}
