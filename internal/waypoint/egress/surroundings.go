package egress

import (
	"net/netip"
	"slices"
)

// Surroundings is what stands around a waypoint's host now. It changes as addresses, routes and NATs do.
type Surroundings struct {
	// Own are the host's addresses.
	Own []netip.Addr
	// OnLink are the prefixes of the networks that the host is in, and the routers that it sends to.
	OnLink []netip.Prefix
	Outside
}

// Outside is how the host looks from outside its network.
type Outside struct {
	// NATs are the addresses at which others see the host. A router's own services may answer there to
	// whoever comes from inside (hairpin, RFC 4787, 6), though to nobody from outside.
	NATs []netip.Addr
	// Hidden reports that others see the host at an IPv4 address that is not known yet: it is behind a
	// NAT and nobody could tell which address that has.
	Hidden bool
}

// Equal reports whether o and other are the same.
func (o Outside) Equal(other Outside) bool {
	return o.Hidden == other.Hidden && slices.Equal(o.NATs, other.NATs)
}

// home is the length of the IPv6 prefix that a network's neighbours are assumed to share: providers give a
// home a /56 (RIPE-690, 4.2), and its router forwards between the networks that it makes of that.
const home = 56

// near lists what is denied by default because it is near, the most specific first. What is denied anyway is
// left out: who allows private addresses has allowed those of the own network too.
func (s Surroundings) near() []entry {
	var near []entry
	add := func(p netip.Prefix, reason Reason) {
		if usual, _ := longest(defaults, p.Addr()); usual.reason == 0 && !slices.Contains(near, entry{p, reason}) {
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
	if s.Hidden {
		near = append(near, entry{netip.MustParsePrefix("0.0.0.0/0"), OutsideUnknown})
	}
	slices.SortStableFunc(near, longestFirst)
	return near
}
