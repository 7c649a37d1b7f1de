package egress

import (
	"net/netip"
	"slices"
)

// Range is a span of addresses of one family, with both its ends.
type Range struct{ First, Last netip.Addr }

// Forbidden lists the addresses that Check denies at every port, in the fewest possible ranges: IPv4 before
// IPv6, in ascending order.
func (p *Policy) Forbidden() []Range {
	var four, six []netip.Addr
	for _, prefix := range p.deciding() {
		if prefix.Addr().Is4() {
			four = appendEdges(four, prefix)
		} else {
			six = appendEdges(six, prefix)
		}
	}
	for _, edge := range four {
		six = append(six, wraps(edge)...)
	}
	// Check decides alike about all addresses between two neighbouring edges.
	return append(p.denied(four), p.denied(six)...)
}

// deciding lists the prefixes at whose edges the answer of Check may change. Those of IPv4 addresses
// inside IPv6 ones are left out.
func (p *Policy) deciding() []netip.Prefix {
	list := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"), sixToFour, nat64}
	for _, e := range slices.Concat(never, p.operator, defaults, p.near) {
		list = append(list, e.prefix)
	}
	for a := range p.own {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}

// appendEdges appends the first address of a prefix, and the first one behind it if there is one.
func appendEdges(edges []netip.Addr, p netip.Prefix) []netip.Addr {
	edges = append(edges, p.Masked().Addr())
	if behind := lastOf(p).Next(); behind.IsValid() {
		edges = append(edges, behind)
	}
	return edges
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// wraps is the inverse of wrapped: the first IPv6 addresses that have the IPv4 address inside.
func wraps(inner netip.Addr) []netip.Addr {
	b := inner.As4()
	tunnel, translator := sixToFour.Addr().As16(), nat64.Addr().As16()
	copy(tunnel[2:], b[:])
	copy(translator[12:], b[:])
	return []netip.Addr{netip.AddrFrom16(tunnel), netip.AddrFrom16(translator)}
}

// denied returns the ranges between edges that Check denies.
func (p *Policy) denied(edges []netip.Addr) []Range {
	slices.SortFunc(edges, netip.Addr.Compare)
	edges = slices.Compact(edges)
	var ranges []Range
	for i, first := range edges {
		if p.decide(first).reason == 0 {
			continue
		}
		last := lastOf(netip.PrefixFrom(first, 0))
		if i+1 < len(edges) {
			last = edges[i+1].Prev()
		}
		if n := len(ranges); n > 0 && ranges[n-1].Last.Next() == first {
			ranges[n-1].Last = last
		} else {
			ranges = append(ranges, Range{first, last})
		}
	}
	return ranges
}
