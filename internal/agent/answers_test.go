package agent

import (
	"testing"

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
