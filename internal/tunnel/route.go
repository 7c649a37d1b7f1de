package tunnel

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/vpn"
)

// maxAvoid is the number of prefixes that a request can hold.
const maxAvoid = 32

// route is a client's route into a tunnel: addresses on its interface, and routes used only by
// packets from these addresses.
type route struct {
	iface  string
	ranges []netip.Prefix // allowed ranges of an address in a tunnel

	accepted []netip.Addr    // from the grant in use
	laid     netstate.Tunnel // as set up on the interface; zero: nothing is
}

// avoid lists the prefixes from which the waypoint must not assign addresses: networks in use on
// this host, as far as they overlap the ranges. This tunnel's own address does not count.
func (r *route) avoid() ([]netip.Prefix, error) {
	used, err := netstate.UsedPrefixes(r.iface)
	if err != nil {
		return nil, err
	}
	used = slices.DeleteFunc(used, func(p netip.Prefix) bool { return !slices.ContainsFunc(r.ranges, p.Overlaps) })
	return used[:min(len(used), maxAvoid)], nil
}

// accept checks the granted addresses and keeps the usable ones. If none is usable, the previous
// ones stay.
func (r *route) accept(granted []netip.Prefix) error {
	used, err := netstate.UsedPrefixes(r.iface)
	if err != nil {
		return err
	}
	accepted, err := vpn.Accept(granted, r.ranges, used)
	if err != nil {
		return err
	}
	r.accepted = accepted
	return nil
}

// check gives up those accepted addresses that this host now uses elsewhere. conflict is the
// reason, left reports whether any addresses stay, and err reports that the check failed.
func (r *route) check() (conflict error, left bool, err error) {
	used, err := netstate.UsedPrefixes(r.iface)
	if err != nil {
		return nil, false, err
	}
	before := r.accepted
	r.accepted = nil
	for _, a := range before {
		if why := vpn.Conflict(a, used); why != nil {
			conflict = errors.Join(conflict, why)
			continue
		}
		r.accepted = append(r.accepted, a)
	}
	left = len(r.accepted) > 0
	if conflict != nil && left {
		if err := r.lay(0); err != nil {
			r.accepted = before
			return nil, false, err
		}
	}
	return conflict, left, nil
}

// lay puts the accepted addresses on the interface, each without its subnet, so that nothing else
// on the host is routed into the tunnel. If mtu is 0, the interface's MTU stays.
func (r *route) lay(mtu int) error {
	t := netstate.Tunnel{Interface: r.iface, MTU: mtu, Sources: slices.Clone(r.accepted)}
	for _, a := range r.accepted {
		t.Addresses = append(t.Addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	err := netstate.SetTunnel(t)
	if errors.Is(err, netstate.ErrNoIPv6) {
		t.Sources = slices.DeleteFunc(t.Sources, netip.Addr.Is6)
	} else if err != nil {
		return err
	}
	r.laid = t
	return nil
}

// ready lists the tunnels whose addresses can be used as source of subflows.
func (r *route) ready(kind path.Kind) []detour.Tunnel {
	var list []detour.Tunnel
	for _, a := range r.laid.Sources {
		list = append(list, detour.Tunnel{Kind: kind, Local: a})
	}
	return list
}

// clear removes what lay made, after the interface's owner has ended with err.
func (r *route) clear(err error) error {
	r.laid = netstate.Tunnel{}
	return errors.Join(err, netstate.RemoveTunnel(r.iface))
}
