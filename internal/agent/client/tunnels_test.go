package client

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// endAt finds the tunnel's address of the converter's family, at whichever address of the waypoint the tunnel ends.
func TestTunnelToConverter(t *testing.T) {
	bob4, bob6, carol := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}, detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("2001:db8::7")}, detour.Via{Waypoint: "carol", Addr: netip.MustParseAddr("192.0.2.8")}
	inside4, inside6 := netip.MustParseAddr("10.192.0.2"), netip.MustParseAddr("fd64:636f:6c00::2")
	tunnels := emptyTunnels(slog.New(slog.DiscardHandler))
	check := func(what string, v detour.Via, local netip.Addr, why string) {
		t.Helper()
		if end := tunnels.endAt(v); end.local != local || !strings.Contains(end.why, why) || (why == "") != (end.why == "") {
			t.Errorf("%s: %+v", what, end)
		}
	}
	check("nothing is known", bob4, netip.Addr{}, noTunnelYet)
	at := standingKey{bob4, path.WireGuard}
	tunnels.standings[at] = tunnel.Standing{Via: bob4, Kind: path.WireGuard, Why: "no handshake"}
	tunnels.standings[standingKey{bob4, path.OpenVPN}] = tunnel.Standing{Tunnels: []detour.Tunnel{{Kind: path.OpenVPN, Local: inside4}}}
	check("it is not up", bob6, netip.Addr{}, "no handshake")
	tunnels.standings[at] = tunnel.Standing{Via: bob4, Kind: path.WireGuard, Tunnels: []detour.Tunnel{{Kind: path.WireGuard, Local: inside4}}}
	check("it is up", bob4, inside4, "")
	check("it has no IPv6", bob6, netip.Addr{}, "no address of the kind of 2001:db8::7")
	tunnels.standings[at] = tunnel.Standing{Via: bob4, Kind: path.WireGuard, Tunnels: []detour.Tunnel{{Kind: path.WireGuard, Local: inside4}, {Kind: path.WireGuard, Local: inside6}}}
	check("it has IPv6", bob6, inside6, "")
	check("another waypoint", carol, netip.Addr{}, noTunnelYet)
}
