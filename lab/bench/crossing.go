package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// The forwarders of a chain: a router, one that also masquerades, and a waypoint.
const (
	plainHost  = "plain"
	natHost    = "nat"
	memberHost = "member"
)

const (
	crossingPort = 5001 // the server's
	relayPort    = 5002 // of socat, on the plain router's host
)

// crossing is one path of a plain TCP connection from client to server. The connection is the same for all
// crossings. Only the hosts between differ.
type crossing struct {
	name string
	from netip.Addr // the client's end
	to   netip.AddrPort
	// prepare, if not nil, routes the next connection over the path.
	prepare func(local netip.AddrPort) error
}

// crossings sets up all ways and returns them, the direct one first.
func (s *network) crossings(ctx context.Context) ([]crossing, error) {
	forwarded := func(name, host string) crossing {
		return crossing{name: name, from: s.onLink(clientHost, toClient(host)),
			to: netip.AddrPortFrom(s.onLink(serverHost, toServer(host)), crossingPort)}
	}
	plain, nat, relay := forwarded("plain forwarding", plainHost), forwarded("conntrack and masquerade", natHost), forwarded("socat", plainHost)
	relay.to = netip.AddrPortFrom(s.onLink(plainHost, toClient(plainHost)), relayPort)
	if err := s.masquerade(ctx, natHost); err != nil {
		return nil, err
	}
	if err := s.relay(ctx, plainHost, plain.to); err != nil {
		return nil, err
	}
	all := []crossing{
		{name: "no forwarder", from: s.onLink(clientHost, direct), to: netip.AddrPortFrom(s.onLink(serverHost, direct), crossingPort)},
		plain, nat, relay,
	}
	detours, err := s.detours(ctx, forwarded("", memberHost).to)
	return append(all, detours...), err
}

// detours returns the ways through the waypoint, one for each kind that it offers.
func (s *network) detours(ctx context.Context, server netip.AddrPort) ([]crossing, error) {
	if _, err := s.startWaypoint(ctx, allKinds, memberHost, true); err != nil {
		return nil, err
	}
	tunnels := []config.Kind{config.WireGuard, config.OpenVPN}
	if _, err := s.startClient(ctx, tunnels, clientHost, memberHost); err != nil {
		return nil, err
	}
	asker, err := s.startAsker(ctx, clientHost, memberHost)
	if err != nil {
		return nil, err
	}
	mapped, err := asker.ask(int(server.Port()), 1)
	if err != nil {
		return nil, err
	}
	client, waypoint := s.onLink(clientHost, toClient(memberHost)), s.onLink(memberHost, toClient(memberHost))
	all := []crossing{
		{
			name: string(config.InBand), from: client, to: netip.AddrPortFrom(waypoint, server.Port()),
			prepare: func(local netip.AddrPort) error {
				return asker.expect(local, netip.AddrPortFrom(waypoint, server.Port()), server.Addr())
			},
		},
		{name: string(config.Mapped), from: client, to: netip.AddrPortFrom(waypoint, mapped.port)},
	}
	for _, kind := range tunnels {
		addr, err := s.tunnelAddr(kind)
		if err != nil {
			return nil, err
		}
		all = append(all, crossing{name: string(kind), from: addr, to: server})
	}
	return all, nil
}

// masquerade makes a host a router as homes have it.
func (s *network) masquerade(ctx context.Context, host string) error {
	return s.nft(ctx, host, fmt.Sprintf(`table ip bench {
	chain postrouting {
		type nat hook postrouting priority srcnat
		oifname %q masquerade
	}
}`, s.Host(host).Interface(toServer(host))))
}

// relay starts a relay in user space on a host. With its own buffers, of 8 KiB, it
// would do worse.
func (s *network) relay(ctx context.Context, host string, to netip.AddrPort) error {
	p, err := s.start(ctx, host, "socat", "socat", "-b", "131072", "-d", "-d",
		"TCP4-LISTEN:"+strconv.Itoa(relayPort)+",fork,reuseaddr", "TCP4:"+to.String())
	if err != nil {
		return err
	}
	return p.awaitSaid(ctx, "listening on")
}

// tunnelAddr returns the client's IPv4 address in its tunnel of a kind to its only
// waypoint: a socket that is bound to it goes through there.
func (s *network) tunnelAddr(kind config.Kind) (addr netip.Addr, err error) {
	known, _ := path.ParseKind(string(kind))
	name := tunnel.Interface(known, 0)
	err = s.Host(clientHost).Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil || len(addrs) == 0 {
			return errors.Join(errors.New("it has no IPv4 address"), err)
		}
		addr, _ = netip.AddrFromSlice(addrs[0].IP)
		addr = addr.Unmap()
		return nil
	})
	if err != nil {
		return addr, fmt.Errorf("find the client's end of the %s tunnel, %s: %w", kind, name, err)
	}
	return addr, nil
}

// dial opens a connection over the path, from an unused port.
func (c crossing) dial(ctx context.Context, s *network, port uint16) (conn net.Conn, err error) {
	local := netip.AddrPortFrom(c.from, port)
	if c.prepare != nil {
		if err := c.prepare(local); err != nil {
			return nil, fmt.Errorf("prepare a connection by %s: %w", c.name, err)
		}
	}
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(local)}
	err = s.Host(clientHost).Do(func() error {
		conn, err = d.DialContext(ctx, "tcp4", c.to.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect by %s: %w", c.name, err)
	}
	return conn, nil
}
