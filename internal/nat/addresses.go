package nat

import (
	"net/netip"
	"slices"
)

// Addresses lists the public addresses at which others see a host, in order: those of the NATs before it, as
// members and routers tell. What one of them tells wrongly is in the list beside what others tell.
func Addresses(sightings []Sighting, opened []netip.AddrPort, own []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, s := range sightings {
		all = append(all, s.At.Addr().Unmap())
	}
	for _, o := range opened {
		all = append(all, o.Addr().Unmap())
	}
	all = slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsGlobalUnicast() || IsPrivate(a) || slices.Contains(own, a) })
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
