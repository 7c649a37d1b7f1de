package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/relay"
)

// The relay of a converter learns of reloaded lists; one of a client only is not made a converter.
func TestPermitted(t *testing.T) {
	here := netip.MustParsePrefix("192.168.1.0/24")
	change := permitted(config.Waypoint{Allow: []netip.Prefix{here}, DenyPorts: []int{25}})
	before := &relay.Serve{Port: 5124}
	s := relay.State{Serve: before}
	change(&s)
	if got := s.Serve.Servers; got == nil || !slices.Equal(got.Allow, []netip.Prefix{here}) || !slices.Equal(got.DenyPorts, []uint16{25}) || s.Serve.Port != 5124 {
		t.Errorf("%+v", s.Serve)
	}
	if before.Servers != nil {
		t.Error("the State that may be on its way has changed")
	}
	client := relay.State{}
	if change(&client); client.Serve != nil {
		t.Error("a client becomes a converter")
	}
}
