package netstate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// OnLink returns, in a stable order, the prefixes of the networks that this host is in, and its routers. No firewall is
// in between. It leaves out prefixes on loopback, unless all their addresses are local to the host.
//
// On links with neighbours it also returns prefixes of routes without a gateway, because an address may be a /128 in a
// network that a router advertises. It leaves out routes into a VPN, default routes without a gateway, and halves of
// such routes. It does not use the neighbour table, which may contain the whole Internet if a router uses proxy ARP.
func (a *Addresses) OnLink() ([]netip.Prefix, error) {
	links, err := consistent(a.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	addrs, err := consistent(func() ([]netlink.Addr, error) { return a.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	routes, err := consistent(func() ([]netlink.Route, error) {
		every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		return a.handle.RouteListFiltered(netlink.FAMILY_ALL, every, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	flags := make(map[int]net.Flags, len(links))
	for _, l := range links {
		if at := l.Attrs(); at.Flags&net.FlagUp != 0 && at.Flags&net.FlagLoopback == 0 {
			flags[at.Index] = at.Flags
		}
	}
	var found []netip.Prefix
	for i := range addrs {
		if flags[addrs[i].LinkIndex] == 0 {
			continue
		}
		found = append(found, prefixOf(addrs[i].IPNet).Masked())
		if addrs[i].Peer != nil {
			found = append(found, prefixOf(addrs[i].Peer).Masked())
		}
	}
	for i := range routes {
		found = appendOnLink(found, &routes[i], flags)
	}
	slices.SortFunc(found, netip.Prefix.Compare)
	return slices.Compact(found), nil
}

// Behind lists the networks to which routes lead through the named interfaces.
func (a *Addresses) Behind(names []string) ([]netip.Prefix, error) {
	var found []netip.Prefix
	for _, name := range names {
		link, err := a.handle.LinkByName(name)
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find interface %s: %w", name, err)
		}
		routes, err := consistent(func() ([]netlink.Route, error) {
			by := &netlink.Route{LinkIndex: link.Attrs().Index}
			return a.handle.RouteListFiltered(netlink.FAMILY_ALL, by, netlink.RT_FILTER_OIF)
		})
		if err != nil {
			return nil, fmt.Errorf("list the routes by interface %s: %w", name, err)
		}
		for _, r := range routes {
			if r.Type == unix.RTN_UNICAST && r.Dst != nil && prefixOf(r.Dst).Bits() > 0 {
				found = append(found, prefixOf(r.Dst).Masked())
			}
		}
	}
	slices.SortFunc(found, netip.Prefix.Compare)
	return slices.Compact(found), nil
}

// appendOnLink appends the routers of a route, or its prefix if it has none.
func appendOnLink(found []netip.Prefix, r *netlink.Route, flags map[int]net.Flags) []netip.Prefix {
	switch {
	case r.Type == unix.RTN_LOCAL && r.Dst != nil && !r.Dst.IP.IsLoopback():
		// Single ones are the host's addresses, see Own. Nearly all are not: they are for transparent proxies.
		if p := prefixOf(r.Dst); !p.IsSingleIP() && p.Bits() >= widest {
			found = append(found, p.Masked())
		}
		return found
	case r.Type != unix.RTN_UNICAST:
		return found
	}
	for _, hop := range hopsOf(r) {
		switch router := routerOf(hop); {
		case flags[hop.LinkIndex] == 0:
		case router.IsValid():
			found = append(found, netip.PrefixFrom(router, router.BitLen()))
		case r.Dst != nil && flags[hop.LinkIndex]&net.FlagBroadcast != 0 && prefixOf(r.Dst).Bits() >= widest:
			found = append(found, prefixOf(r.Dst).Masked())
		}
	}
	return found
}

// hopsOf returns the next hops of a route, at least one.
func hopsOf(r *netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
}

// routerOf returns the router of a next hop, or the zero Addr if there is none. An IPv4 route may have an IPv6 router.
func routerOf(hop *netlink.NexthopInfo) netip.Addr {
	ip := hop.Gw
	if via, ok := hop.Via.(*netlink.Via); ok && ip == nil {
		ip = via.Addr
	}
	router, _ := netip.AddrFromSlice(ip)
	return router.Unmap()
}
