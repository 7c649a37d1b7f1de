package netstate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// private is where tunnels have their subnets: RFC 1918 and RFC 4193.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fc00::/7"),
}

// widest is the length of the largest network that counts as one in use. What is wider is a default
// route, or a half of one, as VPNs set it.
const widest = 8

// UsedPrefixes lists the private networks that this host is in or has routes to, in any table, the
// largest first: a tunnel's subnet should overlap none. What the interfaces in except have and lead
// to does not count, so that who looks for another address of a tunnel is not told of that tunnel.
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
	for _, r := range routes {
		if r.Dst == nil || skip[r.LinkIndex] || (r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_LOCAL) {
			continue
		}
		p := prefixOf(r.Dst).Masked()
		if p.Bits() >= widest && slices.ContainsFunc(private, p.Overlaps) {
			used = append(used, p)
		}
	}
	slices.SortFunc(used, func(a, b netip.Prefix) int { return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Compare(b)) })
	var largest []netip.Prefix
	for _, p := range used {
		if !slices.ContainsFunc(largest, p.Overlaps) {
			largest = append(largest, p)
		}
	}
	return largest, nil
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
