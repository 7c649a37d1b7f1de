package waypoint

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// network is a client, a waypoint and a server in namespaces of their own. The client reaches the
// server only through the waypoint's address: there is no route between their networks.
type network struct {
	client, waypoint, server *netnstest.NS
	config                   Config
	rights                   []int // capabilities that an agent starts with; nil: all
}

var (
	client4   = netip.MustParseAddr("10.1.0.1")
	client6   = netip.MustParseAddr("fd01::1")
	waypoint4 = netip.MustParseAddr("10.1.0.2")
	waypoint6 = netip.MustParseAddr("fd01::2")
	egress4   = netip.MustParseAddr("10.2.0.2")
	egress6   = netip.MustParseAddr("fd02::2")
)

func newNetwork(t testing.TB) *network {
	t.Helper()
	n := &network{client: netnstest.New(t), waypoint: netnstest.New(t), server: netnstest.New(t)}
	netnstest.Veth(t,
		netnstest.End{NS: n.client, Name: "eth0", Addresses: []string{"10.1.0.1/24", "10.1.0.11/24", "fd01::1/64"}},
		netnstest.End{NS: n.waypoint, Name: "eth0", Addresses: []string{"10.1.0.2/24", "fd01::2/64"}})
	netnstest.Veth(t,
		netnstest.End{NS: n.waypoint, Name: "eth1", Addresses: []string{"10.2.0.2/24", "fd02::2/64"}},
		netnstest.End{NS: n.server, Name: "eth0", Addresses: []string{"10.2.0.1/24", "fd02::1/64"}})
	dir := t.TempDir()
	n.config = Config{
		Allow:             []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24"), netip.MustParsePrefix("fd02::/64")},
		DenyPorts:         []uint16{25},
		MappingsPerMember: 100,
		MappingLifetime:   time.Minute,
		FastPath:          true,
		Log:               filepath.Join(dir, "attribution.jsonl"),
		Author:            testAuthor,
		Record:            filepath.Join(dir, "sysctls.json"),
		Memory:            filepath.Join(dir, "given.json"),
		Counts:            filepath.Join(dir, "bytes.json"),
	}
	return n
}

// join adds a link between client and waypoint.
func (n *network) join(t testing.TB, name, client, waypoint string) {
	t.Helper()
	netnstest.Veth(t, netnstest.End{NS: n.client, Name: name, Addresses: []string{client}},
		netnstest.End{NS: n.waypoint, Name: name, Addresses: []string{waypoint}})
}

var discard = slog.New(slog.DiscardHandler)

// start runs an agent's waypoint until stop or the end of the test.
func (n *network) start(t testing.TB) (w *Waypoint, stop func()) {
	t.Helper()
	n.waypoint.Must(t, func() (err error) {
		if n.rights != nil {
			if err := netnstest.LimitRights(n.rights...); err != nil {
				return err
			}
		}
		w, err = Start(n.config, discard)
		return err
	})
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	t.Cleanup(stop)
	return w, stop
}

func (n *network) cleanUp(t testing.TB) {
	t.Helper()
	n.waypoint.Must(t, func() error {
		return CleanUp(n.config.Record, n.config.Memory, n.config.Counts, n.config.marks())
	})
}

// echo runs a server that answers with the address it sees, a newline, and then all it receives.
func (n *network) echo(t testing.TB, address string) netip.AddrPort {
	t.Helper()
	l := n.server.Listen(t, address)
	netnstest.Serve(t, l, func(c *net.TCPConn) {
		fmt.Fprintln(c, c.RemoteAddr())
		netnstest.Echo(c)
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// conn is a client's connection to an echo server.
type conn struct {
	net.Conn
	in   *bufio.Reader
	seen netip.AddrPort // our address as the server sees it
}

func (n *network) dial(t testing.TB, to netip.AddrPort) (*conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := n.client.Dial(ctx, to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("connected, but no greeting: %w", err)
	}
	return &conn{Conn: c, in: in, seen: netip.MustParseAddrPort(line[:len(line)-1])}, nil
}

func (n *network) mustDial(t testing.TB, to netip.AddrPort) *conn {
	t.Helper()
	c, err := n.dial(t, to)
	if err != nil {
		t.Fatalf("dial %v: %v", to, err)
	}
	return c
}

// talk sends bytes and wants them back.
func (c *conn) talk(bytesToSend int) error {
	sent := bytes.Repeat([]byte("x"), bytesToSend)
	go func() { _, _ = c.Write(sent) }()
	got := make([]byte, bytesToSend)
	if _, err := io.ReadFull(c.in, got); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return errors.New("other bytes came back")
	}
	return nil
}

func peer(name string, addr netip.Addr) session.Peer {
	return session.Peer{Name: name, Serial: "5e", Addr: addr}
}

func mustMap(t testing.TB, w *Waypoint, p session.Peer, server netip.AddrPort, proposed uint16) wire.MapGrant {
	t.Helper()
	grant, refusal := w.Map(context.Background(), p, wire.MapRequest{ID: 7, Server: server, Proposed: proposed})
	if refusal != nil {
		t.Fatalf("map %v: %v", server, refusal)
	}
	if grant.ID != 7 || grant.Client != p.Addr.Unmap() {
		t.Fatalf("grant %+v", grant)
	}
	return grant
}

func refusal(t testing.TB, w *Waypoint, p session.Peer, server netip.AddrPort) wire.Code {
	t.Helper()
	grant, refusal := w.Map(context.Background(), p, wire.MapRequest{Server: server, Proposed: server.Port()})
	if refusal == nil {
		t.Fatalf("map %v: granted %+v", server, grant)
	}
	return refusal.Code
}

// testAuthor signs logs with a key that no certificate names.
var testAuthor = attribution.Author{Collective: "test", Waypoint: "waypoint", Sign: func(message func([][]byte) []byte) []byte {
	return ed25519.Sign(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), message(nil))
}}

// entries returns the log's entries about members.
func (n *network) entries(t testing.TB) []attribution.Entry {
	t.Helper()
	content, err := os.ReadFile(n.config.Log)
	if err != nil {
		t.Fatal(err)
	}
	var entries []attribution.Entry
	for line := range bytes.Lines(content) {
		var e attribution.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e.Member != "" {
			entries = append(entries, e)
		}
	}
	return entries
}

// waitEntry waits until the log has an entry.
func (n *network) waitEntry(t testing.TB, what string, is func(attribution.Entry) bool) attribution.Entry {
	t.Helper()
	var found attribution.Entry
	eventually(t, what, func() bool {
		for _, e := range n.entries(t) {
			if is(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
