package client

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/path"
)

// Connections that this host's programs accepted are not said to be to servers without MPTCP, and one server is asked about once.
func TestPlainOpened(t *testing.T) {
	at := netip.MustParseAddrPort
	fallen := []path.Ends{
		{Local: at("192.0.2.1:40001"), Remote: at("203.0.113.6:443")},
		{Local: at("192.0.2.1:80"), Remote: at("203.0.113.9:50000")},
		{Local: at("192.0.2.1:40002"), Remote: at("203.0.113.9:50001")}, // accepted, and the listener is gone
		{Local: at("192.0.2.1:40003"), Remote: at("203.0.113.5:443")},
		{Local: at("192.0.2.1:40004"), Remote: at("203.0.113.6:443")},
	}
	asked := 0
	got := plainOpened(fallen, []netip.AddrPort{at("[::]:80"), at("127.0.0.1:53")}, func(ends path.Ends) bool {
		asked++
		return ends.Local.Port() == 40002
	})
	want := []path.Ends{
		{Local: at("192.0.2.1:40003"), Remote: at("203.0.113.5:443")},
		{Local: at("192.0.2.1:40001"), Remote: at("203.0.113.6:443")},
		{Local: at("192.0.2.1:40004"), Remote: at("203.0.113.6:443")},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if asked != 3 {
		t.Errorf("asked %d times about three servers", asked)
	}
}
