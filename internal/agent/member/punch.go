package member

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/membership"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/stun"
)

// Some waypoints' NATs let in packets only from addresses to which the waypoint has sent before. A client that wants a
// session with one asks other members for the external address of its new socket, and has a coordinator tell the
// waypoint. Both then send packets until they hear each other. QUIC follows from the same socket.

// maxObservers bounds the members that are asked for our external address.
const maxObservers = 8

// others returns the records of waypoints other than this host, in no particular order.
func (m *Member) others(ctx context.Context, except ...string) (list []directory.Record) {
	except, own := append(except, m.self), m.own()
	err := m.Directory(ctx, func(d *directory.Directory) {
		for v := range d.All() {
			if r := v.Record; r.IsWaypoint() && !slices.Contains(except, r.Name) {
				r.Addresses = membership.Usable(v, own)
				list = append(list, r)
			}
		}
	})
	if err != nil {
		return nil // the agent stops
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// Observers returns waypoints of the directory that can be reached without hole punching, at addresses of a family, in no
// particular order.
func (m *Member) Observers(ctx context.Context, is4 bool, except ...string) []nat.Observer {
	return observersAmong(m.others(ctx, except...), is4)
}

// observersAmong returns the members that can be reached without hole punching, each at one address of the family, so that
// none is asked twice.
func observersAmong(records []directory.Record, is4 bool) (list []nat.Observer) {
	for _, r := range records {
		i := slices.IndexFunc(r.Addresses, func(a netip.Addr) bool { return a.Is4() == is4 })
		if i >= 0 && !r.Punch {
			list = append(list, nat.Observer{Member: r.Name, At: netip.AddrPortFrom(r.Addresses[i], r.Port)})
		}
	}
	return list[:min(len(list), maxObservers)]
}

// Way returns a function that opens the way to a waypoint of the directory, for session.ClientConfig.
func (m *Member) Way(waypoint string) func(context.Context, *net.UDPConn, netip.AddrPort) error {
	return func(ctx context.Context, socket *net.UDPConn, to netip.AddrPort) error {
		prober, end := nat.Lend(socket, m.log)
		defer end()
		here, err := m.seen(ctx, prober, socket, to, waypoint)
		if err != nil {
			return err
		}
		id := stun.NewID()
		if err := m.Punch(ctx, waypoint, id, []netip.AddrPort{here}); err != nil {
			return err
		}
		_, err = prober.Knock(ctx, []netip.AddrPort{to}, id)
		if errors.Is(err, nat.ErrNoAnswer) {
			return fmt.Errorf("hole punching failed: nothing arrived, although both ends were told to send (this host is seen at %v): %w", here, err)
		}
		m.log.Debug("the way to a waypoint", "waypoint", waypoint, "at", to, "from", here, "err", err)
		return err
	}
}

// seen returns the external address of a socket that is to send to a waypoint. If there is nobody to ask, it returns the
// socket's own address, which is right without a NAT.
func (m *Member) seen(ctx context.Context, p *nat.Prober, socket *net.UDPConn, to netip.AddrPort, except string) (netip.AddrPort, error) {
	const asked = 2
	list := m.Observers(ctx, to.Addr().Is4(), except)
	for _, o := range list[:min(len(list), asked)] {
		if seen, err := p.Ask(ctx, o.At); err == nil {
			return seen, nil
		}
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) // sends nothing
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("find the route to %v: %w", to, err)
	}
	defer c.Close()
	return netip.AddrPortFrom(udpAddr(c).Addr(), udpAddr(socket).Port()), nil
}

func udpAddr(c *net.UDPConn) netip.AddrPort {
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// Third has a waypoint that is at none of these addresses send us requests, for nat.Question.
func (m *Member) Third(ctx context.Context, asked []netip.Addr, outside netip.AddrPort, id stun.ID) error {
	for _, r := range m.others(ctx) {
		if !slices.ContainsFunc(r.Addresses, func(a netip.Addr) bool { return slices.Contains(asked, a) }) {
			return m.Punch(ctx, r.Name, id, []netip.AddrPort{outside})
		}
	}
	return errors.New("there is no other member to ask")
}
