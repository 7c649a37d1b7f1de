package nat

import (
	"net/netip"
	"slices"
)

// Addresses returns those of the addresses told that are public and not the host's own, in order.
// At these, others see the host through NATs.
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
