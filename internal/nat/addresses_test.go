package nat

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func addrs(list ...string) (all []netip.Addr) {
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

func TestAddresses(t *testing.T) {
	told := addrs(
		"203.0.113.77", "198.51.100.7", "203.0.113.9", "198.51.100.7", // a second uplink
		"10.0.0.3",   // seen by a member in the same network
		"100.64.0.1", // seen by a router behind another one
		"192.0.2.1",  // where there is no NAT
		"224.0.0.1",  // a lie without meaning
	)
	got := Addresses(append(told, netip.Addr{}), addrs("192.0.2.1"))
	want := addrs("198.51.100.7", "203.0.113.9", "203.0.113.77")
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
