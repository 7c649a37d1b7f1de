package egress

import (
	"net/netip"
	"slices"
)

// Surroundings describes the network around a waypoint's host. It changes as addresses, routes and NATs do.
type Surroundings struct {
	// Own are the host's addresses.
	Own []netip.Addr
	// OnLink are the prefixes of the networks that the host is in, and the routers that it sends to.
	OnLink []netip.Prefix
	Outside
}

// Outside describes the host as it is seen from outside its network.
type Outside struct {
	// NATs are the addresses at which others see the host. A router's own services may answer there to
	// whoever comes from inside (hairpin, RFC 4787, 6), though to nobody from outside.
	NATs []netip.Addr
	// Routers are those that the host's packets to the Internet pass first, in IPv6, by addresses that are often
	// on the link between a home and its provider.
	Routers []netip.Addr
	// Hidden reports that others see the host at an IPv4 address that is not certain yet: it is behind
	// a NAT, and not enough could tell which address that has.
	Hidden bool
}

// Equal reports whether o and other are the same.
func (o Outside) Equal(other Outside) bool {
	return o.Hidden == other.Hidden && slices.Equal(o.NATs, other.NATs) && slices.Equal(o.Routers, other.Routers)
}

// home is the length of the IPv6 prefix that a network's neighbours are assumed to share: providers give a
// home a /56 (RIPE-690, 4.2), and its router forwards between the networks that it makes of that.
const home = 56

// link is the length of an IPv6 link's prefix (RFC 7421). The router at the other end of the link to the provider has an
// address in the same one.
const link = 64

// near lists what is denied by default because it is near, the most specific first. What is denied anyway as a whole
// is left out: who allows private addresses has allowed those of the own network too.
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
