package tunnel

import (
	"errors"
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
// are in use on this host. Tunnels are no such use: an address in one is used by
// its own packets only.
func (r *route) avoid() ([]netip.Prefix, error) {
	tunnels, err := ours()
	if err != nil {
		return nil, err
	}
	used, err := netstate.UsedPrefixes(tunnels...)
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
