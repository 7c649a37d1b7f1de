package bench

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
)

// The forwarders of a chain: a router, one that also masquerades, and a waypoint.
const (
	plainHost  = "plain"
	natHost    = "nat"
	memberHost = "member"
)

const (
	transferPort = 5001 // the server's
	relayPort    = 5002 // of socat, on the plain router's host
)

// route is one path of a plain TCP connection from client to server. Only the hosts between them differ from route to
// route.
type route struct {
	name string
	from netip.Addr // the client's end
	to   netip.AddrPort
	// prepare, if not nil, routes the next connection over the path.
	prepare func(local netip.AddrPort) error
}

// routes sets up all routes and returns them, the direct one first.
func (s *network) routes(ctx context.Context) ([]route, error) {
	forwarded := func(name, host string) route {
		return route{name: name, from: s.onLink(clientHost, toClient(host)),
			to: netip.AddrPortFrom(s.onLink(serverHost, toServer(host)), transferPort)}
	}
	plain, nat, relay := forwarded("plain forwarding", plainHost), forwarded("conntrack and masquerade", natHost), forwarded("socat", plainHost)
	relay.to = netip.AddrPortFrom(s.onLink(plainHost, toClient(plainHost)), relayPort)
	if err := s.masquerade(ctx, natHost); err != nil {
		return nil, err
	}
	if err := s.relay(ctx, plainHost, plain.to); err != nil {
		return nil, err
	}
	all := []route{
		{name: "no forwarder", from: s.onLink(clientHost, direct), to: netip.AddrPortFrom(s.onLink(serverHost, direct), transferPort)},
		plain, nat, relay,
	}
	detours, err := s.detours(ctx, forwarded("", memberHost).to)
	return append(all, detours...), err
}

// detours returns the routes through the waypoint, one for each kind of detour that it offers.
func (s *network) detours(ctx context.Context, server netip.AddrPort) ([]route, error) {
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
	all := []route{
		{
			name: string(config.InBand), from: client, to: netip.AddrPortFrom(waypoint, server.Port()),
			prepare: func(local netip.AddrPort) error {
				return asker.expect(local, netip.AddrPortFrom(waypoint, server.Port()), server.Addr())
			},
		},
		{name: string(config.Mapped), from: client, to: netip.AddrPortFrom(waypoint, mapped.Port)},
	}
	for _, kind := range tunnels {
		addr, err := crew.TunnelAddr(s.Host(clientHost), []string{memberHost}, string(kind), memberHost)
		if err != nil {
			return nil, err
		}
		all = append(all, route{name: string(kind), from: addr, to: server})
	}
	return all, nil
}

// masquerade makes a host masquerade, like a home router.
func (s *network) masquerade(ctx context.Context, host string) error {
	return s.Host(host).Nft(ctx, fmt.Sprintf(`table ip bench {
	chain postrouting {
		type nat hook postrouting priority srcnat
		oifname %q masquerade
	}
}`, s.Host(host).Interface(toServer(host))))
}

// relay starts socat as a relay in user space on a host. With its default buffers, of 8 KiB, it would be slower.
func (s *network) relay(ctx context.Context, host string, to netip.AddrPort) error {
	p, err := s.Start(ctx, host, "socat", "socat", "-b", "131072", "-d", "-d",
		"TCP4-LISTEN:"+strconv.Itoa(relayPort)+",fork,reuseaddr", "TCP4:"+to.String())
	if err != nil {
		return err
	}
	return p.AwaitOutput(ctx, startLimit, "listening on")
}

// dial opens a connection over the path, from an unused port.
func (c route) dial(ctx context.Context, s *network, port uint16) (conn net.Conn, err error) {
	local := netip.AddrPortFrom(c.from, port)
	if c.prepare != nil {
		if err := c.prepare(local); err != nil {
			return nil, fmt.Errorf("prepare a connection by %s: %w", c.name, err)
		}
	}
	if conn, err = s.dial(ctx, clientHost, local, c.to, false); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return conn, nil
}
