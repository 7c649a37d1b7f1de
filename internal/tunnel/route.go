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

// maxAvoid is how many prefixes a request can name.
const maxAvoid = 32

// route is a client's way into a tunnel: addresses on its interface, and routes
// that only packets from these addresses take.
type route struct {
	iface  string
	ranges []netip.Prefix // that an address in a tunnel must be from

	accepted []netip.Addr    // of the grant in use
	laid     netstate.Tunnel // zero: nothing is
}

// avoid lists what the waypoint must not give us addresses of: those networks in
// use on this host that it could. This tunnel's own address is no such use.
func (r *route) avoid() ([]netip.Prefix, error) {
	used, err := netstate.UsedPrefixes(r.iface)
	if err != nil {
		return nil, err
	}
	used = slices.DeleteFunc(used, func(p netip.Prefix) bool { return !slices.ContainsFunc(r.ranges, p.Overlaps) })
	return used[:min(len(used), maxAvoid)], nil
}

// accept takes of the granted addresses those that may be ours; the ones before
// stay if none may.
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

// check gives up those of the accepted addresses that this host uses otherwise now,
// and returns why. left reports whether any stay: they do as they are. err: that could
// not be found out or done.
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

// lay puts the accepted addresses on the interface. Each stands alone, without
// its subnet, so that nothing else on the host is routed into the tunnel. An MTU of 0
// leaves the interface's.
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

// ready lists the addresses that subflows may start from.
func (r *route) ready(kind path.Kind) []detour.Tunnel {
	var list []detour.Tunnel
	for _, a := range r.laid.Sources {
		list = append(list, detour.Tunnel{Kind: kind, Local: a})
	}
	return list
}

// clear takes away what lay made, after the interface's owner has ended with err.
func (r *route) clear(err error) error {
	r.laid = netstate.Tunnel{}
	return errors.Join(err, netstate.RemoveTunnel(r.iface))
}
