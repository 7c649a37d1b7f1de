package tunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/path"
)

// maxAvoid is how many prefixes a request can name.
const maxAvoid = 32

// route is a client's way into a tunnel: addresses on its interface, and routes
// that only packets from these addresses take.
type route struct {
	iface string
	laid  netstate.Tunnel // zero: nothing is
}

// avoid lists what the waypoint must not give us addresses of: the prefixes that
// are in use on this host.
func (r *route) avoid() ([]netip.Prefix, error) {
	used, err := netstate.UsedPrefixes(r.iface)
	if err != nil {
		return nil, err
	}
	return used[:min(len(used), maxAvoid)], nil
}

// lay puts the granted addresses on the interface. Each stands alone, without its
// subnet, so that nothing else on the host is routed into the tunnel.
func (r *route) lay(granted []netip.Prefix, mtu int) error {
	if len(granted) == 0 {
		return errors.New("the waypoint's grant has no address")
	}
	t := netstate.Tunnel{Interface: r.iface, MTU: mtu}
	for _, p := range granted {
		t.Addresses = append(t.Addresses, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		t.Sources = append(t.Sources, p.Addr())
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

// open lists the addresses that subflows may start from.
func (r *route) open(kind path.Kind) []detour.Tunnel {
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

// innerMTU is the largest packet that goes through a tunnel to a waypoint in one
// piece, given what of a path's MTU is left in that kind of tunnel, and the
// waypoint's own bound.
func innerMTU(at netip.Addr, left func(path int, remote netip.Addr) int, bound uint16) (int, error) {
	outer, err := netstate.PathMTU(at)
	if err != nil {
		return 0, err
	}
	mtu := left(outer, at)
	if bound != 0 {
		mtu = min(mtu, int(bound))
	}
	if mtu < minMTU {
		return 0, fmt.Errorf("packets to %v may have %d bytes, which leaves %d in a tunnel, less than IPv6's least of %d", at, outer, mtu, minMTU)
	}
	return mtu, nil
}

// minMTU is RFC 8200, section 5.
const minMTU = 1280
