package agent

import (
	"slices"
	"strings"
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
	compareChoice(&s, []string{"bob", "carol", "eve"})
	want := api.Steering{Use: []api.Steered{{Name: "bob"}, {Name: "carlo", Unknown: true}}, Avoid: []api.Steered{{Name: "eev", Unknown: true}}}
	if d := cmp.Diff(want, s); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// A choice that leaves no waypoint has a warning, also if it names others that this host does not know.
func TestAvoidingAllWaypointsWarns(t *testing.T) {
	avoided := []api.Steered{{Name: "bob"}, {Name: "carol"}, {Name: "gone"}}
	for _, c := range []struct {
		known []string
		warns bool
	}{{[]string{"bob", "carol"}, true}, {[]string{"bob", "carol", "eve"}, false}, {nil, false}} {
		s := api.Steering{Avoid: avoided}
		compareChoice(&s, c.known)
		if (s.Warning != "") != c.warns {
			t.Errorf("of %v: %q", c.known, s.Warning)
		}
	}
}

// A choice names each waypoint once. Wrong names are refused, with the one that was meant.
func TestSteered(t *testing.T) {
	known := []string{"north", "south"}
	steered := func(names, known []string) ([]string, error) {
		return steered(api.SteerRequest{Word: api.SteerUse, Waypoints: names}, "alice", known, nil)
	}
	got, err := steered([]string{"south", "north", "south"}, known)
	if err != nil || !slices.Equal(got, []string{"south", "north"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for name, want := range map[string]string{
		"nort":  `"nort" is not a waypoint that this host knows; did you mean "north"?`,
		"SOUTH": `"SOUTH" is not a waypoint that this host knows; did you mean "south"?`,
		"bob":   `"bob" is not a waypoint that this host knows; known here: north, south`,
		"alice": "alice is this host itself: name other members",
	} {
		if _, err := steered([]string{"north", name}, known); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	for want, known := range map[string][]string{"this host knows north, south": known, "this host knows none yet": nil} {
		if _, err := steered(nil, known); err == nil || err.Error() != "no waypoint is named; "+want {
			t.Errorf("without a name: %v, want %s", err, want)
		}
	}
	if _, err := steered([]string{"bob"}, nil); err == nil || !strings.Contains(err.Error(), "it knows none yet") {
		t.Errorf("without waypoints: %v", err)
	}
}

// A choice can be undone when this host no longer knows the waypoint.
func TestResetOfUnknownWaypoints(t *testing.T) {
	reset := func(chosen []string, names ...string) ([]string, error) {
		return steered(api.SteerRequest{Word: api.SteerReset, Waypoints: names}, "alice", []string{"north", "south"}, chosen)
	}
	if got, err := reset([]string{"gone"}, "gone", "north", "gone"); err != nil || !slices.Equal(got, []string{"gone", "north"}) {
		t.Errorf("got %v, %v", got, err)
	}
	const neither = "is neither preferred nor avoided, and not a waypoint that this host knows; "
	for name, want := range map[string]string{
		"bob":   `"bob" ` + neither + "`dcol use` shows which are preferred or avoided",
		"gon":   `"gon" ` + neither + `did you mean "gone"?`,
		"North": `"North" ` + neither + `did you mean "north"?`,
		"alice": "alice is this host itself: name other members",
	} {
		if _, err := reset([]string{"gone"}, name); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}
