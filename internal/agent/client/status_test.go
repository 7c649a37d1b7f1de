package client

import (
	"net/netip"
	"testing"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
)

// A tunnel serves both families of servers; what is amiss towards one is told,
// whichever came first.
func TestWhyOfATunnel(t *testing.T) {
	bob := netip.MustParseAddr("192.0.2.2")
	four := path.DetourState{Detour: path.Detour{Kind: path.OpenVPN, Waypoint: "bob", Endpoint: bob, Local: netip.MustParseAddr("10.77.0.2")}, Why: "rests"}
	six := path.DetourState{Detour: path.Detour{Kind: path.OpenVPN, Waypoint: "bob", Endpoint: bob, Local: netip.MustParseAddr("fd77::2")}}
	inBand := path.DetourState{Detour: path.Detour{Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(bob, 0)}, Why: "new"}
	via := detour.Via{Waypoint: "bob", Addr: bob}
	for _, list := range [][]path.DetourState{{four, six, inBand}, {inBand, six, four}} {
		got := byStanding(list)
		if len(got) != 2 || got[standingKey{via, path.OpenVPN}].Why != "rests" || got[standingKey{via, path.InBand}].Why != "new" {
			t.Errorf("%+v", got)
		}
	}
}
