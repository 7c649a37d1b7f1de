package nat

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestAddresses(t *testing.T) {
	at := func(s string) Sighting { return Sighting{At: netip.MustParseAddrPort(s)} }
	sightings := []Sighting{
		at("198.51.100.7:45672"), at("203.0.113.9:1024"), at("198.51.100.7:9"), // a symmetric NAT, a second uplink
		at("10.0.0.3:45672"),  // by a member in the same network
		at("192.0.2.1:45672"), // where there is no NAT
		at("224.0.0.1:45672"), // a lie that means nothing
	}
	opened := []netip.AddrPort{netip.MustParseAddrPort("203.0.113.77:45672"), netip.MustParseAddrPort("100.64.0.1:45672"), {}}
	got := Addresses(sightings, opened, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	want := []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("203.0.113.77")}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
