package netstate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// private lists the blocks from which tunnels' subnets are taken (RFC 1918, RFC 4193).
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fc00::/7"),
}

// widest is the length of the largest network that counts as in use: the one of all unique local addresses. Larger
// networks are default routes, or the parts of one that VPNs set.
const widest = 7

// UsedPrefixes returns, the largest first, the private networks that this host is in or has routes to, in any table,
// and the routers on the way there. A tunnel's address should overlap none of them. Addresses and routes of the
// interfaces in except are ignored, so that a tunnel does not conflict with itself.
func UsedPrefixes(except ...string) ([]netip.Prefix, error) {
	routes, err := allRoutes()
	if err != nil {
		return nil, fmt.Errorf("find the networks in use: %w", err)
	}
	skip, err := indexes(except)
	if err != nil {
		return nil, fmt.Errorf("find the networks in use: %w", err)
	}
	var used []netip.Prefix
	for i := range routes {
		if skip[routes[i].LinkIndex] {
			continue
		}
		for _, p := range prefixesOf(&routes[i]) {
			if p.Bits() >= widest && slices.ContainsFunc(private, p.Overlaps) {
				used = append(used, p)
			}
		}
	}
	return largest(used), nil
}

// prefixesOf returns the destination of a route and its routers. For a router that is declared to be on the link
// ("onlink"), there may be no other route.
func prefixesOf(r *netlink.Route) []netip.Prefix {
	if r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_LOCAL {
		return nil
	}
	var list []netip.Prefix
	if r.Dst != nil {
		list = append(list, prefixOf(r.Dst).Masked())
	}
	for _, hop := range hopsOf(r) {
		if router := routerOf(hop); router.IsValid() {
			list = append(list, netip.PrefixFrom(router, router.BitLen()))
		}
	}
	return list
}

// largest removes prefixes that are part of another.
func largest(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, func(a, b netip.Prefix) int { return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Compare(b)) })
	var kept []netip.Prefix
	seen := make(map[netip.Prefix]bool)
	for _, p := range list {
		covered := false
		for bits := widest; bits <= p.Bits() && !covered; bits++ {
			covered = seen[netip.PrefixFrom(p.Addr(), bits).Masked()]
		}
		if !covered {
			seen[p], kept = true, append(kept, p)
		}
	}
	return kept
}

func indexes(names []string) (map[int]bool, error) {
	found := make(map[int]bool)
	for _, name := range names {
		link, err := netlink.LinkByName(name)
		if isLinkGone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for interface %s: %w", name, err)
		}
		found[link.Attrs().Index] = true
	}
	return found, nil
}
