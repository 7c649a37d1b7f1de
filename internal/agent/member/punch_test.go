package member

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/nat"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// A member with several addresses is asked at one of them, and takes nobody's place.
func TestObservers(t *testing.T) {
	many := directory.Record{Name: "many", Port: 1}
	for i := range byte(maxObservers) {
		many.Addresses = append(many.Addresses, netip.AddrFrom4([4]byte{198, 51, 100, i}))
	}
	got := observersAmong([]directory.Record{
		many,
		{Name: "six", Addresses: addrs("2001:db8::1"), Port: 2},
		{Name: "punched", Addresses: addrs("203.0.113.1"), Port: 3, Punch: true},
		{Name: "other", Addresses: addrs("2001:db8::2", "203.0.113.2"), Port: 4},
	}, true)
	want := []nat.Observer{
		{Member: "many", At: netip.MustParseAddrPort("198.51.100.0:1")}, {Member: "other", At: netip.MustParseAddrPort("203.0.113.2:4")},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
