package netstate

import (
	"fmt"
	"net/netip"
)

// internet is some address of the Internet, one of a root name server, to ask the kernel which way that is.
// Nothing is sent there.
var internet = netip.AddrFrom4([4]byte{198, 41, 0, 4})

// Gateway is the router towards the Internet, in IPv4, and the address of this host that packets there
// leave from. The gateway is invalid on a link that has none.
func (a *Addresses) Gateway() (gateway, source netip.Addr, err error) {
	routes, err := a.handle.RouteGet(internet.AsSlice())
	if err != nil {
		return netip.Addr{}, netip.Addr{}, fmt.Errorf("there is no way to the Internet: %w", err)
	}
	for _, r := range routes {
		if src, ok := netip.AddrFromSlice(r.Src); ok {
			gateway, _ = netip.AddrFromSlice(r.Gw)
			return gateway.Unmap(), src.Unmap(), nil
		}
	}
	return netip.Addr{}, netip.Addr{}, fmt.Errorf("way to the Internet: the kernel names no source address")
}
