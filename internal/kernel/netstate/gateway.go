package netstate

import (
	"fmt"
	"net/netip"
)

// internet is the address of a root name server, used to ask the kernel for the route to the
// Internet. Nothing is sent there.
var internet = netip.AddrFrom4([4]byte{198, 41, 0, 4})

// Gateway returns the IPv4 router towards the Internet and the source address of packets there. The
// gateway is invalid on a link without one.
func (a *Addresses) Gateway() (gateway, source netip.Addr, err error) {
	routes, err := a.handle.RouteGet(internet.AsSlice())
	if err != nil {
		return netip.Addr{}, netip.Addr{}, fmt.Errorf("there is no route to the Internet: %w", err)
	}
	for _, r := range routes {
		if src, ok := netip.AddrFromSlice(r.Src); ok {
			gateway, _ = netip.AddrFromSlice(r.Gw)
			return gateway.Unmap(), src.Unmap(), nil
		}
	}
	return netip.Addr{}, netip.Addr{}, fmt.Errorf("way to the Internet: the kernel names no source address")
}
