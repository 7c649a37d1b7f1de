package outside

import (
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
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
