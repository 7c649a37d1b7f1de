package experiment

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tunnel"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
)

// tunnelEnd is an address of a client's end of a tunnel.
type tunnelEnd struct {
	kind     scenario.Detour
	waypoint string
	addr     netip.Addr
}

// tunnelEnds lists those a client's host has now; via are the waypoints in its
// agent's configuration, in that order.
func tunnelEnds(h *testbed.Host, via []string) (ends []tunnelEnd, err error) {
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
			addrs, err := netlink.AddrList(link, syscall.AF_UNSPEC)
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if addr, ok := netip.AddrFromSlice(a.IP); ok {
					ends = append(ends, tunnelEnd{kind, waypoint, addr.Unmap()})
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
func tunnelOf(iface string, via []string) (kind scenario.Detour, waypoint string) {
	for n, waypoint := range via {
		for _, kind := range []path.Kind{path.WireGuard, path.OpenVPN} {
			if iface == tunnel.Interface(kind, n) {
				return scenario.Detour(kind.String()), waypoint
			}
		}
	}
	return "", ""
}

// tunnelAddr returns the client's IPv4 address in a tunnel to a waypoint: a socket that
// is bound to it goes through there.
func (l *Lab) tunnelAddr(kind scenario.Detour, waypoint string) (netip.Addr, error) {
	client := l.Scenario.Workload.Client
	ends, err := tunnelEnds(l.net.Host(client), l.clientVia)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, e := range ends {
		if e.kind == kind && e.waypoint == waypoint && e.addr.Is4() {
			return e.addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s has no IPv4 address in a %s tunnel to %s", client, kind, waypoint)
}
