package nat

import (
	"fmt"
	"net/netip"
	"slices"
)

// Mapping classifies how the source of outgoing packets is changed (RFC 4787, 4.1).
type Mapping string

// The mappings.
const (
	MappingUnknown Mapping = "unknown"
	Untranslated   Mapping = "untranslated" // others see the host's own address and port
	Independent    Mapping = "independent"  // another address, the same towards every destination
	Dependent      Mapping = "dependent"    // a different one towards each destination, so there is none to announce
	NoWayOut       Mapping = "no-way-out"   // no answers to UDP
)

// Filtering classifies the packets that are let in from sources to which nothing was sent (RFC 4787,
// 5).
type Filtering string

// The filterings.
const (
	FilteringUnknown Filtering = "unknown"
	PassesAll        Filtering = "passes-all"
	PassesSome       Filtering = "passes-some"      // from addresses that packets were sent to; perhaps from others
	PassesAddresses  Filtering = "passes-addresses" // from addresses that packets were sent to, from any port
	PassesPorts      Filtering = "passes-ports"     // from addresses and ports that packets were sent to
)

// Found describes the NAT between a UDP port and the Internet, if there is one.
type Found struct {
	Mapping   Mapping
	Filtering Filtering
	// Outside is the external address of the port. It is zero if that is unknown or differs between
	// observers.
	Outside netip.AddrPort
}

// Evidence has the observations of one UDP port, for one address family.
type Evidence struct {
	Own       []netip.Addr // the host's addresses
	Port      uint16       // the local port
	Asked     int          // members that were asked for its external address
	Sightings []Sighting   // their answers
	// FromOtherPort tests packets from another port of a member than the one asked,
	// FromOtherAddress those of a member that nothing was ever sent to.
	FromOtherPort, FromOtherAddress Trial
}

// Sighting is the external address of the port as a member saw it.
type Sighting struct {
	Member string
	By     netip.AddrPort // the address at which the member was asked
	At     netip.AddrPort
}

// Trial is the result of a test of whether a packet gets in.
type Trial string

// The outcomes.
const (
	NotTried Trial = ""
	Came     Trial = "came"
	Missed   Trial = "missed"
)

// Conclude draws conclusions from the evidence. Sightings by two members at different addresses
// distinguish the kinds of mapping. One member that did not answer may be down. If two did not, UDP
// is probably blocked, although both may be down.
func Conclude(e Evidence) Found {
	f := Found{Mapping: MappingUnknown, Filtering: filtering(e)}
	seen := telling(e.Sightings)
	own := func(s Sighting) bool { return s.At.Port() == e.Port && slices.Contains(e.Own, s.At.Addr()) }
	if len(seen) > 0 && !slices.ContainsFunc(seen, func(s Sighting) bool { return !own(s) }) {
		f.Mapping = Untranslated
		f.Outside = seen[0].At // if there are several, each one works
		if f.Filtering == PassesSome {
			f.Filtering = PassesAll // firewalls that distinguish addresses also distinguish ports
		}
		return f
	}
	switch {
	case len(seen) == 0 && e.Asked >= 2:
		f.Mapping = NoWayOut
	case len(seen) == 0:
	case slices.ContainsFunc(seen, func(s Sighting) bool { return s.At != seen[0].At }):
		f.Mapping = Dependent
	case slices.ContainsFunc(seen, func(s Sighting) bool { return s.By.Addr() != seen[0].By.Addr() }):
		f.Mapping, f.Outside = Independent, seen[0].At
	default: // seen by one member only
		f.Outside = seen[0].At
	}
	return f
}

// Holds reports whether f is still true after the sightings in before were repeated. The outside
// port of a dependent mapping is ignored, because it changes.
func (f Found) Holds(before, now []Sighting) bool {
	for _, s := range now {
		if f.Mapping == Independent && s.At != f.Outside {
			return false
		}
		if !slices.ContainsFunc(before, func(b Sighting) bool { return b.By == s.By && b.At.Addr() == s.At.Addr() }) {
			return false
		}
	}
	return len(now) > 0
}

// telling drops sightings by members in the same private network if there are others.
func telling(all []Sighting) []Sighting {
	public := slices.DeleteFunc(slices.Clone(all), func(s Sighting) bool { return IsPrivate(s.At.Addr()) })
	if len(public) > 0 {
		return public
	}
	return all
}

func filtering(e Evidence) Filtering {
	switch {
	case e.FromOtherPort == Missed: // packets that arrived from elsewhere must have had an unknown reason
		return PassesPorts
	case e.FromOtherAddress == Came:
		return PassesAll
	case e.FromOtherPort == Came && e.FromOtherAddress == Missed:
		return PassesAddresses
	case e.FromOtherPort == Came:
		return PassesSome
	}
	return FilteringUnknown
}

// Kind returns the common name for this combination.
func (f Found) Kind() string {
	switch f.Mapping {
	case NoWayOut:
		return "no answer over UDP"
	case Dependent:
		return "symmetric NAT"
	case Untranslated:
		switch f.Filtering {
		case PassesAll:
			return "no NAT"
		case PassesAddresses, PassesPorts:
			return "no NAT, but a firewall"
		}
		return "no NAT"
	case Independent:
		switch f.Filtering {
		case PassesAll:
			return "full cone NAT"
		case PassesAddresses:
			return "address-restricted cone NAT"
		case PassesPorts:
			return "port-restricted cone NAT"
		}
		return "cone NAT"
	}
	if f.Outside.IsValid() {
		return "NAT"
	}
	return "unknown"
}

// Leaves classifies how others can reach a port.
type Leaves string

// The possibilities, the best first.
const (
	Reachable   Leaves = "reachable"    // everybody gets in, as long as a packet is sent now and then
	Punchable   Leaves = "punchable"    // those that send at the same time, coordinated by a third party, get in
	Unreachable Leaves = "unreachable"  // nobody gets in unless the router is asked to open the port
	LeavesOpen  Leaves = "not-known"    // too few members could be asked
	ClientOnly  Leaves = "outward-only" // even sessions to others do not work
)

// Leaves returns how others can reach the port if the router does not open it.
func (f Found) Leaves() Leaves {
	switch f.Mapping {
	case NoWayOut:
		return ClientOnly
	case Dependent:
		return Unreachable
	case Untranslated, Independent:
		switch f.Filtering {
		case PassesAll:
			return Reachable
		case PassesSome, PassesAddresses, PassesPorts:
			return Punchable
		}
	}
	return LeavesOpen
}

// WhyOpen explains why Leaves is LeavesOpen, given the evidence e. Otherwise it is empty.
func (f Found) WhyOpen(e Evidence) string {
	switch {
	case f.Leaves() != LeavesOpen:
		return ""
	case e.Asked == 0:
		return "there is no other waypoint to ask at which address it sees this host"
	case len(e.Sightings) == 0:
		return "the only other waypoint did not answer when it was asked at which address it sees this host"
	case f.Mapping == MappingUnknown:
		return fmt.Sprintf("one other waypoint sees this host at %v; a second one is needed to test whether others reach it", f.Outside)
	}
	return fmt.Sprintf("others see this host at %v; none could test yet whether they reach it uninvited", f.Outside)
}

// BehindAnother reports whether a router that opened a port is itself behind another NAT: members
// see us at another address or, without sightings, the router's address is private. The opened port
// is then of little use.
func BehindAnother(opened netip.AddrPort, sightings []Sighting) bool {
	seen := telling(sightings)
	if len(seen) == 0 {
		return IsPrivate(opened.Addr())
	}
	return !slices.ContainsFunc(seen, func(s Sighting) bool { return s.At.Addr() == opened.Addr() })
}

// Reach returns how others can reach a port that a router may have opened at opened, which may be
// zero.
func Reach(f Found, opened netip.AddrPort, sightings []Sighting) (at netip.AddrPort, left Leaves) {
	if opened.IsValid() && !BehindAnother(opened, sightings) {
		return opened, Reachable
	}
	return f.Outside, f.Leaves()
}

// private lists the prefixes of networks behind address-translating routers (RFC 1918, RFC 6598,
// RFC 3927, RFC 4193, RFC 4291), and loopback.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::1/128"),
}

// IsPrivate reports whether an address is only valid behind some router.
func IsPrivate(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(private, func(p netip.Prefix) bool { return p.Contains(a) })
}
