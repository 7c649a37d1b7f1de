package config

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// block is a block of private addresses, with the length of its smallest part that holds a subnet
// for a waypoint.
type block struct {
	prefix   netip.Prefix
	smallest int
}

// privateBlocks are the blocks of RFC 1918 and RFC 4193.
var privateBlocks = []block{
	{netip.MustParsePrefix("10.0.0.0/8"), 24},
	{netip.MustParsePrefix("172.16.0.0/12"), 24},
	{netip.MustParsePrefix("192.168.0.0/16"), 24},
	{netip.MustParsePrefix("fc00::/7"), 64},
}

// checkTunnelRanges rejects ranges from which a waypoint could give a client a public address of
// somebody else.
func checkTunnelRanges(p *tomlfile.Problems, ranges []netip.Prefix) {
	if len(ranges) == 0 {
		p.At("tunnel_ranges", `is empty: name a block of private addresses, such as "10.192.0.0/11" (to use no tunnels, remove them from kinds and offers)`)
	}
	for i, r := range ranges {
		switch n := slices.IndexFunc(privateBlocks, func(b block) bool { return within(r, b.prefix) }); {
		case n < 0:
			p.At("tunnel_ranges", "%v is not private: it must be within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or fc00::/7", r)
		case r != r.Masked():
			p.At("tunnel_ranges", "%v has bits beyond its length: write %v", r, r.Masked())
		case r.Bits() > privateBlocks[n].smallest:
			p.At("tunnel_ranges", "%v is too small: the longest prefix is /%d", r, privateBlocks[n].smallest)
		}
		if slices.ContainsFunc(ranges[:i], func(o netip.Prefix) bool { return o.Addr().Is4() == r.Addr().Is4() }) {
			p.At("tunnel_ranges", "%v is the second block of its family: name at most one of each", r)
		}
	}
}

// within reports whether the whole prefix r is part of the prefix of.
func within(r, of netip.Prefix) bool { return r.Bits() >= of.Bits() && of.Contains(r.Addr()) }
