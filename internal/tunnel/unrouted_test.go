package tunnel

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// Programs of a host without a route in IPv6 send nothing into a tunnel, though the kernel gives them its
// address; a subflow of MPTCP gets through.
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

	// Without the guard they would: else the rest shows nothing.
	if err := dialWithin(client, to, 5*time.Second); err != nil {
		t.Fatalf("without a guard: %v", err)
	}
	var g *nft.Kept
	client.Must(t, func() (err error) { g, err = OpenGuard([]string{"dcolwg0"}); return err })
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
	// The kernel opens subflows with MP_JOIN: a raw SYN stands for one.
	from := netip.MustParseAddr("fd64:636f:6c00::9")
	const mpCapable, mpJoin = 0x01, 0x10
	client.Must(t, func() error { return sendSYN(from, to, mpJoin) })
	if err := client.Do(func() error { return sendSYN(from, to, mpCapable) }); !errors.Is(err, unix.EPERM) {
		t.Errorf("a SYN without MP_JOIN: %v", err)
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

// sendUDP sends twice: what is said of the first packet is the error of the second.
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

// sendSYN sends a SYN with an option of MPTCP, and fails if this host's rules keep it.
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
