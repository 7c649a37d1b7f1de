package enrol

import (
	"net/netip"
	"slices"
)

// privateBlocks are blocks whose addresses are other hosts in other networks: RFC 1918, 6598 and 4193.
func privateBlocks() []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 8), netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16}), 12),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168}), 16), netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64}), 10),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfc}), 7),
	}
}

// Shares says whether a host with these addresses may be in the network in which another has the address at: if
// that is private, one of its own is of the same block.
func Shares(own []netip.Addr, at netip.Addr) bool {
	for _, block := range privateBlocks() {
		if block.Contains(at) {
			return slices.ContainsFunc(own, block.Contains)
		}
	}
	return true
}
