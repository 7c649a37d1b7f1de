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

// OnLink returns the prefixes of the networks that this host is in, and the routers that it uses,
// in a stable order. These are reached without a firewall in between. Loopback is excluded, except
// for prefixes whose addresses are all local to the host.
//
// The prefixes are those of addresses and, on links with neighbours, those of routes without a
// gateway: an address may be a /128 in a network that a router advertises. Routes into a VPN do not
// count. Neither does a default route without a gateway, or a half of one, or the neighbour table,
// which may contain the whole Internet if a router uses proxy ARP.
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

// Behind lists the networks to which routes lead by the interfaces of these names.
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

// hopsOf returns a route's next hops, of which there is at least one.
func hopsOf(r *netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
}

// routerOf returns the router of a next hop, which for an IPv4 route may be an IPv6 one; zero: none.
func routerOf(hop *netlink.NexthopInfo) netip.Addr {
	ip := hop.Gw
	if via, ok := hop.Via.(*netlink.Via); ok && ip == nil {
		ip = via.Addr
	}
	router, _ := netip.AddrFromSlice(ip)
	return router.Unmap()
}
