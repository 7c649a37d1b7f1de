package outside

import (
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
)

func TestWants(t *testing.T) {
	session := portmap.Want{Protocol: portmap.UDP, Port: 45672}
	if got := wants(45672, config.Waypoint{Offers: []config.Kind{config.WireGuard}, OpenVPNPort: 1194}); !slices.Equal(got, []portmap.Want{session}) {
		t.Errorf("WireGuard wants %v", got)
	}
	if got := wants(45672, config.Waypoint{Offers: []config.Kind{config.OpenVPN}, OpenVPNPort: 1194}); !slices.Equal(got, []portmap.Want{session, {Protocol: portmap.UDP, Port: 1194}}) {
		t.Errorf("OpenVPN wants %v", got)
	}
}

// What is wrong with the router is a problem only for a host that others do not reach without it.
func TestNeedsRouter(t *testing.T) {
	for _, test := range []struct {
		found nat.Found
		want  bool
	}{
		{nat.Found{Mapping: nat.Untranslated, Filtering: nat.PassesAll}, false},
		{nat.Found{Mapping: nat.Untranslated, Filtering: nat.PassesPorts}, true}, // a firewall
		{nat.Found{Mapping: nat.Independent, Filtering: nat.PassesAll}, true},    // the port of OpenVPN may be closed
		{nat.Conclude(nat.Evidence{}), true},                                     // not known yet
	} {
		if got := needsRouter(test.found); got != test.want {
			t.Errorf("%s: %v, want %v", test.found.Kind(), got, test.want)
		}
	}
}
