package serving

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/membership"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func TestReachable(t *testing.T) {
	for _, test := range []struct {
		name                     string
		named, mapped, own, want []netip.Addr
	}{
		{name: "named", named: addrs("203.0.113.7"), mapped: addrs("192.0.2.1"), own: addrs("10.0.0.2"), want: addrs("203.0.113.7")},
		{name: "public", own: addrs("127.0.0.1", "10.0.0.2", "192.0.2.7", "fe80::1", "fd00::7", "2001:db8::7"), want: addrs("192.0.2.7", "2001:db8::7")},
		{name: "private only", own: addrs("10.0.0.2", "fd00::7"), want: addrs("10.0.0.2", "fd00::7")},
		{name: "one family private", own: addrs("10.0.0.2", "2001:db8::7"), want: addrs("10.0.0.2", "2001:db8::7")},
		{name: "behind a router", mapped: addrs("192.0.2.1"), own: addrs("192.168.0.2", "2001:db8::7"), want: addrs("192.0.2.1", "2001:db8::7")},
		{name: "the same", mapped: addrs("192.0.2.1"), own: addrs("192.0.2.1"), want: addrs("192.0.2.1")},
		{name: "none", own: addrs("127.0.0.1")},
	} {
		if got := reachable(test.named, test.mapped, test.own); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	var many []netip.Addr
	for n := range 20 {
		many = append(many, netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}))
	}
	if got := reachable(nil, nil, many); len(got) != maxOffered {
		t.Errorf("%d addresses are offered", len(got))
	}
}

// A router's port takes the place of ours, unless the operator names addresses.
func TestOfferingMapped(t *testing.T) {
	var last membership.Offer
	o := &offering{offer: func(offer membership.Offer) { last = offer }, port: 45672, own: addrs("192.168.0.2")}
	o.say()
	if last.Port != 45672 || !slices.Equal(last.Addresses, addrs("192.168.0.2")) {
		t.Errorf("%+v", last)
	}
	o.mapped = netip.MustParseAddrPort("192.0.2.1:50000")
	o.say()
	if last.Port != 50000 || !slices.Equal(last.Addresses, addrs("192.0.2.1")) {
		t.Errorf("mapped: %+v", last)
	}
	o.mapped = netip.AddrPort{}
	o.say()
	if last.Port != 45672 || !slices.Equal(last.Addresses, addrs("192.168.0.2")) {
		t.Errorf("no longer mapped: %+v", last)
	}
	o.named = addrs("203.0.113.9")
	o.mapped = netip.MustParseAddrPort("192.0.2.1:50000")
	o.say()
	if last.Port != 45672 || !slices.Equal(last.Addresses, o.named) {
		t.Errorf("named: %+v", last)
	}
}

// Who lets in only what it has sent to says so, at the place where it is seen.
func TestOfferingPunch(t *testing.T) {
	var last membership.Offer
	o := &offering{offer: func(offer membership.Offer) { last = offer }, port: 45672, own: addrs("192.168.0.2"), punch: true, mapped: netip.MustParseAddrPort("192.0.2.1:50000")}
	o.say()
	if !last.Punch || last.Port != 50000 || !slices.Equal(last.Addresses, addrs("192.0.2.1")) {
		t.Errorf("%+v", last)
	}
}
