package nat

import (
	"net/netip"
	"slices"
)

// Addresses returns the public addresses in told that are not the host's own, in order. They are
// addresses of NATs before the host.
func Addresses(told, own []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, a := range told {
		if a = a.Unmap().WithZone(""); isPublic(a) && !slices.Contains(own, a) {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func isPublic(a netip.Addr) bool { return a.IsGlobalUnicast() && !IsPrivate(a) }
