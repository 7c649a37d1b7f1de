package nat

import (
	"fmt"
	"net/netip"
	"slices"
)

// Mapping is what happens to the source of packets on their way out (RFC 4787, 4.1).
type Mapping string

// The mappings.
const (
	MappingUnknown Mapping = "unknown"
	Untranslated   Mapping = "untranslated" // others see the host's own address and port
	Independent    Mapping = "independent"  // another address, the same towards everybody
	Dependent      Mapping = "dependent"    // another one towards each: nobody can be told where to send to
	NoWayOut       Mapping = "no-way-out"   // nobody answers to UDP
)

// Filtering is what gets in without having been sent to (RFC 4787, 5).
type Filtering string

// The filterings.
const (
	FilteringUnknown Filtering = "unknown"
	PassesAll        Filtering = "passes-all"
	PassesSome       Filtering = "passes-some"      // addresses that were sent to; perhaps others
	PassesAddresses  Filtering = "passes-addresses" // that were sent to, from whatever port
	PassesPorts      Filtering = "passes-ports"     // that were sent to
)

// Found is what stands between a UDP port and the Internet.
type Found struct {
	Mapping   Mapping
	Filtering Filtering
	// Outside is where others see the port; zero if that is not known, or depends on who looks.
	Outside netip.AddrPort
}

// Evidence is what was learned of one UDP port, for one family of addresses.
type Evidence struct {
	Own       []netip.Addr // the host's addresses
	Port      uint16       // the port, as this host has it
	Asked     int          // members that were asked where they see it
	Sightings []Sighting   // their answers
	// Whether a packet came in that a member sent from another port than the one that was asked, and one
	// of a member that nothing was ever sent to.
	FromOtherPort, FromOtherAddress Trial
}

// Sighting is where a member saw the port.
type Sighting struct {
	Member string
	By     netip.AddrPort // where the member was asked
	At     netip.AddrPort
}

// Trial is whether something came that could have.
type Trial string

// The outcomes.
const (
	NotTried Trial = ""
	Came     Trial = "came"
	Missed   Trial = "missed"
)

// Conclude draws the conclusion of the evidence. Two members at different addresses tell one kind of
// mapping from the other. One that did not answer may be down; when two did not, UDP is probably
// blocked, though all may be down.
func Conclude(e Evidence) Found {
	f := Found{Mapping: MappingUnknown, Filtering: filtering(e)}
	seen := telling(e.Sightings)
	own := func(s Sighting) bool { return s.At.Port() == e.Port && slices.Contains(e.Own, s.At.Addr()) }
	if len(seen) > 0 && !slices.ContainsFunc(seen, func(s Sighting) bool { return !own(s) }) {
		f.Mapping = Untranslated
		f.Outside = seen[0].At // where there are several, each is good
		if f.Filtering == PassesSome {
			f.Filtering = PassesAll // firewalls that tell addresses apart tell ports apart too
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
	default: // as one member sees it; perhaps only that one
		f.Outside = seen[0].At
	}
	return f
}

// Holds reports whether f is still true after its sightings before were made anew. The port that a dependent mapping has
// outside says nothing: it changes.
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

// telling leaves out what members in the same private network see, where others see more.
func telling(all []Sighting) []Sighting {
	public := slices.DeleteFunc(slices.Clone(all), func(s Sighting) bool { return IsPrivate(s.At.Addr()) })
	if len(public) > 0 {
		return public
	}
	return all
}

func filtering(e Evidence) Filtering {
	switch {
	case e.FromOtherPort == Missed: // whatever came from elsewhere had a reason that we do not know
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

// Kind is the name that people know it by.
func (f Found) Kind() string {
	switch f.Mapping {
	case NoWayOut:
		return "nobody answers over UDP"
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

// Leaves is what others can do about a port.
type Leaves string

// What may be left, the best first.
const (
	Reachable   Leaves = "reachable"    // anybody gets in, as long as something goes out now and then
	Punchable   Leaves = "punchable"    // who is told of a third to send at the same time gets in
	Unreachable Leaves = "unreachable"  // nobody gets in, unless the router is told to open the port
	LeavesOpen  Leaves = "not-known"    // too few members were there to ask
	ClientOnly  Leaves = "outward-only" // not even sessions to others work
)

// Leaves tells what the port can be used for if nobody tells the router to open it.
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

// WhyOpen says why Leaves is LeavesOpen, of what was concluded from e; empty: it is not.
func (f Found) WhyOpen(e Evidence) string {
	switch {
	case f.Leaves() != LeavesOpen:
		return ""
	case e.Asked == 0:
		return "there is no other waypoint to ask where it sees this host"
	case len(e.Sightings) == 0:
		return "the only other waypoint did not answer when it was asked where it sees this host"
	case f.Mapping == MappingUnknown:
		return fmt.Sprintf("one other waypoint sees this host at %v, and it takes a second one to tell whether others get in", f.Outside)
	}
	return fmt.Sprintf("others see this host at %v, and none could try yet whether it lets in whom it has not sent to", f.Outside)
}

// BehindAnother says whether a router that opened a port has another NAT before it: members see us
// elsewhere or, where none was there to ask, its address is private. Its port is then of little use.
func BehindAnother(opened netip.AddrPort, sightings []Sighting) bool {
	seen := telling(sightings)
	if len(seen) == 0 {
		return IsPrivate(opened.Addr())
	}
	return !slices.ContainsFunc(seen, func(s Sighting) bool { return s.At.Addr() == opened.Addr() })
}

// Reach is how others get to a port that a router may have opened: opened is where, or zero.
func Reach(f Found, opened netip.AddrPort, sightings []Sighting) (at netip.AddrPort, left Leaves) {
	if opened.IsValid() && !BehindAnother(opened, sightings) {
		return opened, Reachable
	}
	return f.Outside, f.Leaves()
}

// private are the addresses of networks behind routers that translate them (RFC 1918, RFC 6598, RFC 3927,
// RFC 4193, RFC 4291), and loopback.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::1/128"),
}

// IsPrivate says whether an address means something only behind some router.
func IsPrivate(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(private, func(p netip.Prefix) bool { return p.Contains(a) })
}
