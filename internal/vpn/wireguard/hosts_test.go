package wireguard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is four hosts in a row:
//
//	client .2 -- 192.0.2.0/24 -- .1 router .1 -- 198.51.100.0/24 -- .2 waypoint .1 -- 203.0.113.0/24 -- .2 server
//
// and the same over IPv6, in 2001:db8:2::/64, 2001:db8:3::/64 and 2001:db8:4::/64. The client
// reaches the server without a tunnel too.
type network struct{ client, router, waypoint, server *netnstest.NS }

const (
	client4, client6     = "192.0.2.2", "2001:db8:2::2"
	waypoint4, waypoint6 = "198.51.100.2", "2001:db8:3::2"
	server4, server6     = "203.0.113.2", "2001:db8:4::2"
)

func newNetwork(t testing.TB) network {
	t.Helper()
	n := network{netnstest.New(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs TUN: %v", err)
	}
	end := func(ns *netnstest.NS, name string, addrs ...string) netnstest.End {
		return netnstest.End{NS: ns, Name: name, Addresses: addrs}
	}
	netnstest.Veth(t, end(n.client, "eth0", client4+"/24", client6+"/64"), end(n.router, "eth0", "192.0.2.1/24", "2001:db8:2::1/64"))
	netnstest.Veth(t, end(n.router, "eth1", "198.51.100.1/24", "2001:db8:3::1/64"), end(n.waypoint, "eth0", waypoint4+"/24", waypoint6+"/64"))
	netnstest.Veth(t, end(n.waypoint, "eth1", "203.0.113.1/24", "2001:db8:4::1/64"), end(n.server, "eth0", server4+"/24", server6+"/64"))
	for _, ns := range []*netnstest.NS{n.router, n.waypoint} {
		forward(t, ns)
	}
	defaultRoutes(t, n.client, "192.0.2.1", "2001:db8:2::1")
	defaultRoutes(t, n.waypoint, "198.51.100.1", "2001:db8:3::1")
	defaultRoutes(t, n.server, "203.0.113.1", "2001:db8:4::1")
	n.router.Route(t, "203.0.113.0/24", waypoint4)
	n.router.Route(t, "2001:db8:4::/64", waypoint6)
	return n
}

func forward(t testing.TB, ns *netnstest.NS) {
	t.Helper()
	ns.Must(t, func() error {
		return errors.Join(netstate.SetSysctl("net/ipv4/ip_forward", "1"), netstate.SetSysctl("net/ipv6/conf/all/forwarding", "1"))
	})
}

func defaultRoutes(t testing.TB, ns *netnstest.NS, via ...string) {
	t.Helper()
	for _, gw := range via {
		if strings.Contains(gw, ":") {
			ns.Route(t, "::/0", gw)
		} else {
			ns.Route(t, "0.0.0.0/0", gw)
		}
	}
}

// The tunnel's addresses.
var (
	clientInner   = []netip.Addr{netip.MustParseAddr("10.7.0.9"), netip.MustParseAddr("fd07::9")}
	waypointInner = []netip.Prefix{netip.MustParsePrefix("10.7.0.1/22"), netip.MustParsePrefix("fd07::1/64")}
	everything    = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
)

type end struct {
	*Device
	ns      *netnstest.NS
	private [32]byte
}

const testPort = 51820

func open(t testing.TB, ns *netnstest.NS, c Config) *end {
	t.Helper()
	e := &end{ns: ns, private: c.PrivateKey}
	if e.private == [32]byte{} {
		private, _, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		e.private, c.PrivateKey = private, private
	}
	if c.MTU == 0 {
		c.MTU = 1420
	}
	c.Log = testLog(t)
	ns.Must(t, func() (err error) { e.Device, err = Open(c); return err })
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if want := map[bool]string{true: "userspace"}[c.ForceUserspace]; want != "" && e.Kind() != want {
		t.Fatalf("kind %s, want %s", e.Kind(), want)
	}
	return e
}

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (e *end) setPeer(t testing.TB, p Peer) {
	t.Helper()
	if err := e.SetPeer(p); err != nil {
		t.Fatal(err)
	}
}

func (e *end) setTunnel(t testing.TB, tunnel netstate.Tunnel) {
	t.Helper()
	e.ns.Must(t, func() error { return netstate.SetTunnel(tunnel) })
}

func hostPrefixes(addrs ...netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range addrs {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}

// join makes a tunnel between client and waypoint, to an address of the waypoint's.
func (n network) join(t testing.TB, c Config, outer string) (client, waypoint *end) {
	t.Helper()
	c.Interface, c.ListenPort = "dcolwg", testPort
	waypoint = open(t, n.waypoint, c)
	waypoint.setTunnel(t, netstate.Tunnel{Interface: "dcolwg", Addresses: waypointInner})
	c.Interface, c.ListenPort = "dcolwg0", 0
	client = open(t, n.client, c)
	meet(t, client, waypoint, outer)
	return client, waypoint
}

func meet(t testing.TB, client, waypoint *end, outer string) {
	t.Helper()
	waypoint.setPeer(t, Peer{PublicKey: client.PublicKey(), Allowed: hostPrefixes(clientInner...)})
	client.setPeer(t, Peer{
		PublicKey: waypoint.PublicKey(), Endpoint: netip.AddrPortFrom(netip.MustParseAddr(outer), testPort),
		Allowed: everything, Keepalive: 25 * time.Second,
	})
	client.setTunnel(t, netstate.Tunnel{Interface: "dcolwg0", Addresses: hostPrefixes(clientInner...), Sources: clientInner})
}

func (e *end) state(t testing.TB) PeerState {
	t.Helper()
	peers, err := e.Peers()
	if err != nil || len(peers) != 1 {
		t.Fatalf("peers %v, %v", peers, err)
	}
	return peers[0]
}

// eventually waits for what needs the kernel, a timer of WireGuard's or another process.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// echo answers with what it gets, on a port of the server's; it tells whom it sees.
func (n network) echo(t testing.TB, host string) netip.AddrPort {
	t.Helper()
	l := n.server.Listen(t, net.JoinHostPort(host, "0"))
	netnstest.Serve(t, l, func(c *net.TCPConn) {
		seen := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if _, err := fmt.Fprintf(c, "%-64v", seen); err == nil {
			netnstest.Echo(c)
		}
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// talk is a connection to an echo server.
type talk struct {
	net.Conn
	Seen string // whom the server sees
}

func dial(t testing.TB, ns *netnstest.NS, from string, to netip.AddrPort) *talk {
	t.Helper()
	k, err := tryDial(ns, from, to, 60*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func tryDial(ns *netnstest.NS, from string, to netip.AddrPort, timeout time.Duration) (*talk, error) {
	k := &talk{}
	err := ns.Do(func() (err error) {
		d := net.Dialer{Timeout: timeout}
		d.SetMultipathTCP(false)
		if from != "" {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
		}
		k.Conn, err = d.DialContext(context.Background(), "tcp", to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	seen := make([]byte, 64)
	k.SetDeadline(time.Now().Add(timeout))
	if _, err := io.ReadFull(k, seen); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	k.SetDeadline(time.Time{})
	k.Seen = strings.TrimSpace(string(seen))
	return k, nil
}

// exchange sends so many bytes and wants them back.
func (k *talk) exchange(t testing.TB, size int) {
	t.Helper()
	if err := k.tryExchange(size); err != nil {
		t.Fatal(err)
	}
}

func (k *talk) tryExchange(size int) error {
	sent := slices.Repeat([]byte("0123456789abcdef"), (size+15)/16)[:size]
	written := make(chan error, 1)
	k.SetDeadline(time.Now().Add(90 * time.Second))
	go func() { _, err := k.Write(sent); written <- err }()
	got := make([]byte, size)
	if _, err := io.ReadFull(k, got); err != nil {
		k.Close()
		return fmt.Errorf("read: %w, write: %w", err, <-written)
	}
	if err := <-written; err != nil {
		return err
	}
	if string(got) != string(sent) {
		return errors.New("other bytes came back than went out")
	}
	return nil
}
