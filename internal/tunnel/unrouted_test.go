package tunnel

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// On a host without an IPv6 route, programs send nothing into a tunnel, although the kernel would choose its address.
// MPTCP subflows get through.
func TestTunnelIsNoRouteForOthers(t *testing.T) {
	client, waypoint := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: client, Name: "dcolwg0", Addresses: []string{"fd64:636f:6c00::9/64"}},
		netnstest.End{NS: waypoint, Name: "dcolwg", Addresses: []string{"fd64:636f:6c00::1/64"}})
	client.Output(t, "ip", "-6", "rule", "add", "from", "fd64:636f:6c00::9", "lookup", "77")
	client.Output(t, "ip", "-6", "route", "add", "default", "via", "fd64:636f:6c00::1", "dev", "dcolwg0", "table", "77")
	const server = "2001:db8::5"
	waypoint.Output(t, "ip", "address", "add", server+"/128", "dev", "lo", "nodad")
	to := netip.AddrPortFrom(netip.MustParseAddr(server), 443)
	waypoint.Listen(t, to.String())

	// Without the guard they would send. Otherwise the rest of the test would show nothing.
	if err := dialWithin(client, to, 5*time.Second); err != nil {
		t.Fatalf("without a guard: %v", err)
	}
	var g *Guard
	client.Must(t, func() (err error) { g, err = OpenGuard([]string{"dcolwg0"}, Reserved{}); return err })
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := dialWithin(client, to, 5*time.Second); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("TCP: %v", err)
	}
	if err := sendUDP(client, to); err == nil {
		t.Error("UDP: the packet left")
	}
	// A raw SYN with MP_JOIN takes the place of a subflow that the kernel opens.
	from := netip.MustParseAddr("fd64:636f:6c00::9")
	const mpCapable, mpJoin = 0x01, 0x10
	client.Must(t, func() error { return sendSYN(from, to, mpJoin) })
	if err := client.Do(func() error { return sendSYN(from, to, mpCapable) }); !errors.Is(err, unix.EPERM) {
		t.Errorf("a SYN without MP_JOIN: %v", err)
	}
}

// Packets that are reserved for tunnels leave by tunnels only, even after a tunnel has ended and its address is used
// elsewhere. In IPv6 they can also enter a tunnel. The routing rule comes back when another program has removed it.
func TestReservedLeaveByTunnelsOnly(t *testing.T) {
	client, waypoint := netnstest.New(t), netnstest.New(t)
	for name, addrs := range map[string][2]string{"eth0": {"192.0.2.2/24", "192.0.2.1/24"}, "dcolwg0": {"fd64:636f:6c00::9/64", "fd64:636f:6c00::1/64"}} {
		netnstest.Veth(t, netnstest.End{NS: client, Name: name, Addresses: []string{addrs[0]}}, netnstest.End{NS: waypoint, Name: name, Addresses: []string{addrs[1]}})
	}
	for _, at := range []string{"192.0.2.1:5124", "[fd64:636f:6c00::1]:5124"} {
		waypoint.Listen(t, at)
	}
	if err := dialWithin(client, netip.MustParseAddrPort("[fd64:636f:6c00::1]:5124"), 5*time.Second); err != nil { // a tunnel has no neighbours to be found
		t.Fatal(err)
	}
	client.Output(t, "ip", "-6", "rule", "add", "from", "fd64:636f:6c00::9", "lookup", "77", "priority", "200")
	client.Output(t, "ip", "-6", "route", "add", "default", "dev", "dcolwg0", "table", "77")
	const marks, mark = 0xff0000ff, 2
	var g *Guard
	client.Must(t, func() (err error) {
		g, err = OpenGuard([]string{"dcolwg0"}, Reserved{Mask: marks, Mark: mark})
		return err
	})
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	dial := func(from, to string, mark int) error {
		return client.Do(func() error {
			d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Control: func(_, _ string, c syscall.RawConn) error {
				var inner error
				err := c.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
				return errors.Join(err, inner)
			}}
			c, err := d.DialContext(context.Background(), "tcp", to)
			if err == nil {
				_ = c.Close()
			}
			return err
		})
	}
	const outside, inTunnel = "192.0.2.2", "fd64:636f:6c00::9"
	for _, c := range []struct {
		from, to string
		mark     int
		leave    bool
	}{
		{outside, "192.0.2.1:5124", mark, false},
		{outside, "192.0.2.1:5124", mark | 0x100, false}, // a bit of another program
		{outside, "192.0.2.1:5124", 0, true},
		{outside, "192.0.2.1:5124", mark | 0xc0000000, true}, // a converter's own
		{inTunnel, "[fd64:636f:6c00::1]:5124", mark, true},
		{inTunnel, "[fd64:636f:6c00::1]:5124", 0, false},
	} {
		if err := dial(c.from, c.to, c.mark); (err == nil) != c.leave {
			t.Errorf("from %s to %s with mark %#x: %v", c.from, c.to, c.mark, err)
		}
	}
	client.Output(t, "nft", "flush", "ruleset")
	if err := dial(outside, "192.0.2.1:5124", mark); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("without the table: %v", err)
	}
	for _, family := range []string{"-4", "-6"} {
		client.Output(t, "ip", family, "rule", "flush")
		client.Must(t, func() error { _, err := g.Check(); return err })
		if rules := client.Output(t, "ip", family, "rule"); !strings.Contains(rules, "201:") {
			t.Errorf("the rule for reserved packets is not restored:\n%s", rules)
		}
	}
}

func dialWithin(ns *netnstest.NS, to netip.AddrPort, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := ns.Dial(ctx, to)
	if err == nil {
		_ = c.Close()
	}
	return err
}

// sendUDP sends two packets, because an error about the first is returned for the second.
func sendUDP(ns *netnstest.NS, to netip.AddrPort) error {
	return ns.Do(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer c.Close()
		for range 2 {
			if _, err := c.Write([]byte("question")); err != nil {
				return err
			}
		}
		return nil
	})
}

// sendSYN sends a SYN with an MPTCP option. It fails if this host's rules drop it.
func sendSYN(from netip.Addr, to netip.AddrPort, subtype byte) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: from.As16()}); err != nil {
		return err
	}
	const checksumAt = 16
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, checksumAt); err != nil {
		return err
	}
	syn := []byte{
		0x9c, 0x40, byte(to.Port() >> 8), byte(to.Port()), 1, 2, 3, 4, 0, 0, 0, 0,
		8 << 4, 2, 0xff, 0xff, 0, 0, 0, 0,
		30, 12, subtype, 1, 0, 0, 0, 7, 0, 0, 0, 9,
	}
	return unix.Sendto(fd, syn, 0, &unix.SockaddrInet6{Addr: to.Addr().As16()})
}
