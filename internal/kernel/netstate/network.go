package netstate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network returns addresses that identify the network through which this host reaches the Internet. For each interface
// with a default route, these are its addresses and its routers. Those of the main table and of low metrics come first.
// All routing tables count, except those of our tunnels. The routes that VPNs set in place of a default route count,
// too. If there are none of these routes, all routes to routers count. If there are no such routes either, Network
// returns nothing.
//
// Network returns the /64 of IPv6 addresses, because temporary addresses come and go (RFC 8981). It leaves out secondary
// IPv4 addresses.
//
// Two networks look the same if their routers have the same address, they give this host the same IPv4 address, and they
// have no IPv6. This happens by chance with home routers of one make, and often with phones that share their connection.
// The routers' link-layer addresses would tell the networks apart, but the host does not know them before it has sent
// packets. A network also looks the same if its router has moved: a virtual machine does not notice that its host is on
// another network now.
func (a *Addresses) Network() ([]netip.Addr, error) {
	exits, err := a.exits()
	if err != nil {
		return nil, err
	}
	own, err := a.list(func(addr *netlink.Addr) bool {
		// The flag means "temporary" for IPv6.
		return isUsable(addr) && (addr.IP.To4() == nil || addr.Flags&unix.IFA_F_SECONDARY == 0)
	})
	if err != nil {
		return nil, err
	}
	var network []netip.Addr
	add := func(a netip.Addr) {
		if !slices.Contains(network, a) {
			network = append(network, a)
		}
	}
	for _, e := range exits {
		for _, o := range own {
			switch {
			case o.IfIndex != e.ifIndex || o.Addr.Is4() != (e.family == netlink.FAMILY_V4):
			case o.Addr.Is4():
				add(o.Addr)
			default:
				add(netip.PrefixFrom(o.Addr, 64).Masked().Addr())
			}
		}
		if e.router.IsValid() {
			add(e.router)
		}
	}
	return network, nil
}

// exit is a next hop of a route.
type exit struct {
	family  int
	ifIndex int
	router  netip.Addr // invalid: there is none
	main    bool       // in the main table
	metric  int
}

// exits returns the next hops towards the Internet, those of the main table and of low metrics first. If there are none, it
// returns all routers.
func (a *Addresses) exits() ([]exit, error) {
	var internet, routers []exit
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := consistent(func() ([]netlink.Route, error) {
			return a.handle.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			r := &routes[i]
			if r.Type != unix.RTN_UNICAST || r.Protocol == tunnelProtocol {
				continue
			}
			for _, hop := range hopsOf(r) {
				e := exit{family, hop.LinkIndex, routerOf(hop), r.Table == unix.RT_TABLE_MAIN, r.Priority}
				if isWide(r) {
					internet = append(internet, e)
				} else if e.router.IsValid() {
					routers = append(routers, e)
				}
			}
		}
	}
	if len(internet) == 0 {
		internet = routers
	}
	slices.SortStableFunc(internet, func(a, b exit) int {
		if a.family == b.family && a.main != b.main {
			if a.main {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.metric, b.metric), a.router.Compare(b.router))
	})
	return internet, nil
}

// isWide reports whether a route leads to the Internet or to a large part of it.
func isWide(r *netlink.Route) bool {
	return isDefault(r) || prefixOf(r.Dst).Bits() < widest && !prefixOf(r.Dst).Addr().IsMulticast()
}
