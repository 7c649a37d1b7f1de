package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// A subflow that an earlier agent opened to the waypoint's address and the server's port may have been in-band or
// mapped. Where both are possible it counts as in-band, whichever is offered first.
func TestAdoptedSubflowIsNamedByTheLikelierKind(t *testing.T) {
	at := netip.MustParseAddrPort
	server, waypoint := at("203.0.113.5:443"), at("192.0.2.7:443")
	inBand := path.DetourOffered{Detour: path.Detour{ID: "in-band", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(waypoint.Addr(), 0)}}
	mapped := path.DetourOffered{Detour: path.Detour{ID: "mapped", Kind: path.Mapped, Waypoint: "bob", Remote: waypoint, Server: server}}
	elsewhere := path.DetourOffered{Detour: path.Detour{ID: "elsewhere", Kind: path.Mapped, Waypoint: "bob", Remote: at("192.0.2.7:30001"), Server: server}}
	for _, test := range []struct {
		name   string
		remote netip.AddrPort // of the subflow
		offers []path.Event
		want   string
	}{
		{"mapped is offered first", waypoint, []path.Event{mapped, inBand}, "in-band"},
		{"in-band is offered first", waypoint, []path.Event{inBand, mapped}, "in-band"},
		{"only mapped is offered", waypoint, []path.Event{mapped}, "mapped"},
		{"at another port", at("192.0.2.7:30001"), []path.Event{inBand, elsewhere}, "mapped"},
		{"nothing is offered", waypoint, nil, "unknown"},
	} {
		now := time.Unix(1, 0)
		m := path.New(path.Config{Policy: policy.Detours{Subflows: 2}})
		m.Handle(path.Resync{Conns: []path.LiveConn{{Token: 1, Local: at("192.0.2.1:40000"), Remote: server, Subflows: []path.LiveSubflow{
			{Local: at("192.0.2.1:40000"), Remote: server}, {LocalID: 1, Local: at("192.0.2.1:40001"), Remote: test.remote},
		}}}}, now)
		m.Handle(path.WaypointReady{Waypoint: "bob", Addr: waypoint.Addr()}, now)
		for _, offer := range test.offers {
			m.Handle(offer, now)
		}
		got := m.Snapshot(now).Conns[0].Subflows
		if len(got) != 2 || got[1].Kind != test.want {
			t.Errorf("%s: %+v, want %s", test.name, got, test.want)
		}
	}
}
