package egress

import (
	"net/netip"
	"slices"
)

// Surroundings describes the network around a waypoint's host. It changes when addresses, routes or NATs do.
type Surroundings struct {
	// Own are the host's addresses.
	Own []netip.Addr
	// OnLink are the prefixes of the networks that the host is in, and its next routers.
	OnLink []netip.Prefix
	Outside
}

// Outside describes the host as hosts outside its network see it.
type Outside struct {
	// NATs are the addresses at which others see the host. A router's own services may answer there to
	// hosts inside (hairpinning, RFC 4787, 6), even if they answer nobody outside.
	NATs []netip.Addr
	// Routers are the IPv6 addresses of the first routers on the host's way to the Internet. They are often on the
	// link between a home and its provider.
	Routers []netip.Addr
	// Hidden reports that the host is behind a NAT whose external IPv4 address is not certain yet, because
	// too few others have reported it.
	Hidden bool
}

// Equal reports whether o and other are the same.
func (o Outside) Equal(other Outside) bool {
	return o.Hidden == other.Hidden && slices.Equal(o.NATs, other.NATs) && slices.Equal(o.Routers, other.Routers)
}

// home is the length of the IPv6 prefix that neighbouring networks are assumed to share. Providers assign a
// /56 to a home (RIPE-690, 4.2), and its router forwards between the networks in that.
const home = 56

// link is the length of an IPv6 link's prefix (RFC 7421). Both ends of the link to the provider have addresses in
// one such prefix.
const link = 64

// near lists the prefixes that are denied by default because they are near, the most specific first. It leaves out
// prefixes within other defaults: an operator who allows private addresses allows those of the own network, too.
func (s Surroundings) near() []entry {
	var near []entry
	add := func(p netip.Prefix, reason Reason) {
		usual, _ := longest(defaults, p.Addr())
		if (usual.reason == 0 || p.Bits() < usual.prefix.Bits()) && !slices.Contains(near, entry{p, reason}) {
			near = append(near, entry{p, reason})
		}
	}
	for _, a := range s.NATs {
		add(netip.PrefixFrom(a, a.BitLen()), OutsideAddress)
	}
	for _, p := range s.OnLink {
		add(p.Masked(), Neighbour)
		if p.Addr().Is6() && p.Bits() > home {
			add(netip.PrefixFrom(p.Addr(), home).Masked(), Neighbour)
		}
	}
	for _, a := range s.Routers {
		if a.Is6() {
			add(netip.PrefixFrom(a, link).Masked(), RouterLink)
		}
	}
	if s.Hidden {
		near = append(near, entry{netip.MustParsePrefix("0.0.0.0/0"), OutsideUnknown})
	}
	slices.SortStableFunc(near, longestFirst)
	return near
}
