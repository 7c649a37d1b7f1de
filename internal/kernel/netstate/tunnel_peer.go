package netstate

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SetTunnelPeer routes one host into a tunnel's interface. mtu limits the size of packets to that host, for paths that
// are narrower than those of other hosts behind the interface; 0 means the interface's MTU. ICMP notifies senders of
// larger packets. The route is removed with the interface. The error is ErrNoIPv6 if the interface cannot have IPv6.
func SetTunnelPeer(name string, host netip.Addr, mtu int) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.RouteReplace(peerRoute(link.Attrs().Index, host, mtu))
	}
	if host.Is6() && (errors.Is(err, unix.EACCES) || isNoIPv6(err)) {
		return fmt.Errorf("route packets to %v by %s: %w (%w)", host, name, ErrNoIPv6, err)
	}
	if err != nil {
		return fmt.Errorf("route packets to %v by %s, of %d bytes at most: %w", host, name, mtu, err)
	}
	return nil
}

// RemoveTunnelPeer removes what SetTunnelPeer created. If there is nothing to remove, it returns
// nil.
func RemoveTunnelPeer(name string, host netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if isLinkGone(err) {
		return nil
	}
	if err == nil {
		err = deleteRoutes(*peerRoute(link.Attrs().Index, host, 0))
	}
	if err != nil {
		return fmt.Errorf("end the route to %v by %s: %w", host, name, err)
	}
	return nil
}

// TunnelPeers returns the hosts that SetTunnelPeer routed into the interface.
func TunnelPeers(name string) ([]netip.Addr, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("list routes by %s: %w", name, err)
	}
	routes, err := consistent(func() ([]netlink.Route, error) {
		ours := &netlink.Route{LinkIndex: link.Attrs().Index, Protocol: tunnelProtocol, Table: unix.RT_TABLE_MAIN}
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, ours, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes by %s: %w", name, err)
	}
	var hosts []netip.Addr
	for i := range routes {
		if routes[i].Dst == nil {
			continue
		}
		if p := prefixOf(routes[i].Dst); p.IsSingleIP() {
			hosts = append(hosts, p.Addr())
		}
	}
	return hosts, nil
}

func peerRoute(ifIndex int, host netip.Addr, mtu int) *netlink.Route {
	return &netlink.Route{
		Dst: ipNet(netip.PrefixFrom(host, host.BitLen())), LinkIndex: ifIndex,
		Scope: netlink.SCOPE_LINK, Protocol: tunnelProtocol, MTU: mtu,
	}
}
