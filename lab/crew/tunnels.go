package crew

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tunnel"
	"github.com/detour-collective/dcol/lab/testbed"
)

// TunnelEnd is the address of a client on a tunnel.
type TunnelEnd struct {
	Kind     path.Kind
	Waypoint string
	Addr     netip.Addr
}

// TunnelEnds lists the tunnel ends that a client's host has now. via has the waypoints in its agent's configuration, in
// their order.
func TunnelEnds(h *testbed.Host, via []string) (ends []TunnelEnd, err error) {
	err = h.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			kind, waypoint := tunnelOf(link.Attrs().Name, via)
			if waypoint == "" {
				continue
			}
			addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if addr, ok := netip.AddrFromSlice(a.IP); ok {
					ends = append(ends, TunnelEnd{kind, waypoint, addr.Unmap()})
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the tunnels of %s: %w", h.Name(), err)
	}
	return ends, nil
}

// tunnelOf returns the kind and waypoint of a client's tunnel interface, or no waypoint for other interfaces.
func tunnelOf(iface string, via []string) (kind path.Kind, waypoint string) {
	for n, waypoint := range via {
		for _, kind := range []path.Kind{path.WireGuard, path.OpenVPN} {
			if iface == tunnel.Interface(kind, n) {
				return kind, waypoint
			}
		}
	}
	return 0, ""
}

// TunnelAddr returns a client's IPv4 address on its tunnel of a kind to a waypoint. A socket bound to this address uses
// the tunnel.
func TunnelAddr(h *testbed.Host, via []string, kind, waypoint string) (netip.Addr, error) {
	ends, err := TunnelEnds(h, via)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, e := range ends {
		if e.Kind.String() == kind && e.Waypoint == waypoint && e.Addr.Is4() {
			return e.Addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s has no IPv4 address in a %s tunnel to %s", h.Name(), kind, waypoint)
}
