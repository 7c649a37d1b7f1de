package client

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// Connections that this host's programs accepted are not said to be to servers without MPTCP.
func TestPlainServers(t *testing.T) {
	at := netip.MustParseAddrPort
	fallen := []mptcp.Connection{
		{Local: at("192.0.2.1:40001"), Remote: at("203.0.113.6:443"), Fallback: true},
		{Local: at("192.0.2.1:80"), Remote: at("203.0.113.9:50000"), Fallback: true},
		{Local: at("192.0.2.1:40002"), Remote: at("203.0.113.9:50001"), Fallback: true, ServerSide: true},
		{Local: at("192.0.2.1:40003"), Remote: at("203.0.113.5:443"), Fallback: true},
	}
	got := plainServers(fallen, []netip.AddrPort{at("[::]:80"), at("127.0.0.1:53")})
	if want := []netip.AddrPort{at("203.0.113.5:443"), at("203.0.113.6:443")}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
