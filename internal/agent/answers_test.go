package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
)

// A waypoint that the configuration names is in use like one that this host has chosen.
func TestConfiguredWaypointsAreUsed(t *testing.T) {
	members := []api.Member{{Name: "bob"}, {Name: "carol", Used: true}, {Name: "dave"}}
	useConfigured(members, []config.Peer{{Name: "bob"}, {Name: "not in the directory"}})
	for i, want := range []bool{true, true, false} {
		if members[i].Used != want {
			t.Errorf("%s: used %v", members[i].Name, members[i].Used)
		}
	}
}

// The configuration may name waypoints that this host does not know.
func TestUnknownWaypointsAreMarked(t *testing.T) {
	s := api.Steering{Use: []api.Steered{{Name: "bob"}, {Name: "carlo"}}, Avoid: []api.Steered{{Name: "eev"}}}
	markUnknown(&s, []string{"bob", "carol", "eve"})
	want := api.Steering{Use: []api.Steered{{Name: "bob"}, {Name: "carlo", Unknown: true}}, Avoid: []api.Steered{{Name: "eev", Unknown: true}}}
	if d := cmp.Diff(want, s); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
