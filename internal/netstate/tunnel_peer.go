package netstate

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// SetTunnelPeerMTU bounds packets to one host behind a tunnel, whose path is narrower than those of
// others that share the interface: whoever sends it larger ones is told so by ICMP. 0 takes the bound
// away; it goes with the interface too.
func SetTunnelPeerMTU(name string, host netip.Addr, mtu int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("set the MTU to %v by %s: %w", host, name, err)
	}
	route := netlink.Route{
		Dst: ipNet(netip.PrefixFrom(host, host.BitLen())), LinkIndex: link.Attrs().Index,
		Scope: netlink.SCOPE_LINK, Protocol: tunnelProtocol, MTU: mtu,
	}
	if mtu == 0 {
		err = deleteRoutes(route)
	} else {
		err = netlink.RouteReplace(&route)
	}
	if err != nil {
		return fmt.Errorf("set the MTU to %v by %s to %d: %w", host, name, mtu, err)
	}
	return nil
}
