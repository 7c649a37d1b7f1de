package nat

import (
	"net/netip"
	"testing"
)

func TestConclude(t *testing.T) {
	at, addr := netip.MustParseAddrPort, netip.MustParseAddr
	one, two := at("198.51.100.1:45672"), at("198.51.100.2:45672")
	own := []netip.Addr{addr("192.168.1.2"), addr("203.0.113.7")}
	outside, other := at("203.0.113.9:45672"), at("203.0.113.9:50000")
	for _, c := range []struct {
		name   string
		e      Evidence
		kind   string
		leaves Leaves
		at     netip.AddrPort
	}{
		{"nobody to ask", Evidence{}, "unknown", LeavesOpen, netip.AddrPort{}},
		{"the only one is silent", Evidence{Asked: 1}, "unknown", LeavesOpen, netip.AddrPort{}},
		{"two are silent", Evidence{Asked: 2}, "no answer over UDP", ClientOnly, netip.AddrPort{}},
		{"own address", Evidence{Asked: 1, Sightings: []Sighting{{By: one, At: at("203.0.113.7:45672")}}}, "no NAT", LeavesOpen, at("203.0.113.7:45672")},
		{"own address, other ports get in", Evidence{Asked: 1, Sightings: []Sighting{{By: one, At: at("203.0.113.7:45672")}}, FromOtherPort: Came},
			"no NAT", Reachable, at("203.0.113.7:45672")},
		{"own address, firewall", Evidence{Asked: 1, Sightings: []Sighting{{By: one, At: at("203.0.113.7:45672")}}, FromOtherPort: Missed},
			"no NAT, but a firewall", Punchable, at("203.0.113.7:45672")},
		{"own address, another port", Evidence{Asked: 1, Sightings: []Sighting{{By: one, At: at("203.0.113.7:1")}}}, "NAT", LeavesOpen, at("203.0.113.7:1")},
		{"one sees another", Evidence{Asked: 1, Sightings: []Sighting{{By: one, At: outside}}}, "NAT", LeavesOpen, outside},
		{"one sees the same twice", Evidence{Asked: 1, Sightings: []Sighting{{By: one, At: outside}, {By: one, At: outside}}}, "NAT", LeavesOpen, outside},
		{"two see the same", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: outside}}}, "cone NAT", LeavesOpen, outside},
		{"full cone", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: outside}}, FromOtherPort: Came, FromOtherAddress: Came},
			"full cone NAT", Reachable, outside},
		{"contradictory", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: outside}}, FromOtherPort: Missed, FromOtherAddress: Came},
			"port-restricted cone NAT", Punchable, outside},
		{"address-restricted", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: outside}}, FromOtherPort: Came, FromOtherAddress: Missed},
			"address-restricted cone NAT", Punchable, outside},
		{"other ports get in, strangers were not tried", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: outside}}, FromOtherPort: Came},
			"cone NAT", Punchable, outside},
		{"port-restricted", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: outside}}, FromOtherPort: Missed},
			"port-restricted cone NAT", Punchable, outside},
		{"symmetric", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: other}}, FromOtherPort: Missed}, "symmetric NAT", Unreachable, netip.AddrPort{}},
		{"a member in the same network", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: at("192.168.1.2:45672")}, {By: two, At: outside}}}, "NAT", LeavesOpen, outside},
		{"all in the same network", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: at("192.168.1.2:45672")}, {By: two, At: at("192.168.1.2:45672")}}},
			"no NAT", LeavesOpen, at("192.168.1.2:45672")},
		{"two own addresses", Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: at("203.0.113.7:45672")}, {By: two, At: at("192.168.1.2:45672")}}},
			"no NAT", LeavesOpen, at("203.0.113.7:45672")},
	} {
		c.e.Own, c.e.Port = own, 45672
		f := Conclude(c.e)
		if f.Kind() != c.kind || f.Leaves() != c.leaves || f.Outside != c.at {
			t.Errorf("%s: %s at %v, leaves %v; want %s at %v, leaves %v", c.name, f.Kind(), f.Outside, f.Leaves(), c.kind, c.at, c.leaves)
		}
	}
}

// WhyOpen gives a reason exactly if it is not known how others can reach the port.
func TestWhyOpen(t *testing.T) {
	at := netip.MustParseAddrPort
	one, two, outside := at("198.51.100.1:45672"), at("198.51.100.2:45672"), at("203.0.113.9:45672")
	for _, c := range []struct {
		e    Evidence
		want string
	}{
		{Evidence{}, "there is no other waypoint to ask at which address it sees this host"},
		{Evidence{Asked: 1}, "the only other waypoint did not answer when it was asked at which address it sees this host"},
		{Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}}}, "one other waypoint sees this host at 203.0.113.9:45672; a second one is needed to test whether others reach it"},
		{Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: outside}}}, "others see this host at 203.0.113.9:45672; none could test yet whether they reach it uninvited"},
		{Evidence{Asked: 2}, ""},
		{Evidence{Asked: 2, Sightings: []Sighting{{By: one, At: outside}, {By: two, At: outside}}, FromOtherPort: Missed}, ""},
	} {
		if got := Conclude(c.e).WhyOpen(c.e); got != c.want {
			t.Errorf("%+v: %q, want %q", c.e, got, c.want)
		}
	}
}

func TestBehindAnother(t *testing.T) {
	at := netip.MustParseAddrPort
	seen := []Sighting{{By: at("198.51.100.1:45672"), At: at("203.0.113.9:1")}}
	for _, c := range []struct {
		opened string
		seen   []Sighting
		want   bool
	}{
		{"203.0.113.9:45672", seen, false},
		{"203.0.113.9:45672", nil, false},
		{"10.1.1.1:45672", nil, true},
		{"100.64.0.1:45672", nil, true},
		{"10.1.1.1:45672", seen, true},
		{"203.0.113.8:45672", seen, true},
		{"10.1.1.1:45672", []Sighting{{By: at("10.9.9.9:45672"), At: at("10.1.1.1:3")}}, false},
	} {
		if got := BehindAnother(at(c.opened), c.seen); got != c.want {
			t.Errorf("%s, seen %v: %v", c.opened, c.seen, got)
		}
	}
}
