package enrol

import (
	"net/netip"
	"slices"
)

// privateBlocks returns the blocks whose addresses belong to different hosts in different networks: RFC 1918, 6598
// and 4193.
func privateBlocks() []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 8), netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16}), 12),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168}), 16), netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64}), 10),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfc}), 7),
	}
}

// Shares reports whether a host with these addresses may reach another's address: if that is private, the host must
// have one in the same block.
func Shares(own []netip.Addr, at netip.Addr) bool {
	for _, block := range privateBlocks() {
		if block.Contains(at) {
			return slices.ContainsFunc(own, block.Contains)
		}
	}
	return true
}
