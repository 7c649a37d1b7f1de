package client

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

func TestSteering(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newSteering(config.Client{Use: []string{"bob"}, Avoid: []string{"eve"}})
	is := func(what string, want path.Steering) {
		t.Helper()
		if d := cmp.Diff(want, s.will()); d != "" {
			t.Errorf("%s (-want +is)\n%s", what, d)
		}
	}
	do := func(r api.SteerRequest) {
		t.Helper()
		if err := s.change(r, now); err != nil {
			t.Error(err)
		}
	}
	is("as configured", path.Steering{Use: []string{"bob"}, Avoid: []string{"eve"}})

	do(api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"carol", "eve"}, Only: true, ForSeconds: 60})
	is("for a minute", path.Steering{Use: []string{"carol", "eve"}, Only: true})
	do(api.SteerRequest{Word: api.SteerAvoid, Waypoints: []string{"eve"}, ForSeconds: 30})
	is("avoided again", path.Steering{Use: []string{"carol"}, Only: true, Avoid: []string{"eve"}})
	if next := s.next(); !next.Equal(now.Add(30*time.Second)) || s.expire(now.Add(29*time.Second)) {
		t.Errorf("the next end is at %v", next)
	}
	if !s.expire(now.Add(30 * time.Second)) {
		t.Error("nothing ended after 30 s")
	}
	is("avoided as configured", path.Steering{Use: []string{"carol"}, Only: true, Avoid: []string{"eve"}})
	if !s.expire(s.next()) || !s.next().IsZero() {
		t.Error("the minute does not end")
	}
	is("after a minute", path.Steering{Use: []string{"bob"}, Avoid: []string{"eve"}})

	do(api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"dave"}, Only: true})
	do(api.SteerRequest{Word: api.SteerAvoid, Waypoints: []string{"dave"}})
	is("the only one is avoided: the others may be taken", path.Steering{Use: []string{}, Avoid: []string{"dave", "eve"}})
	do(api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"carol", "eve"}})
	do(api.SteerRequest{Word: api.SteerReset, Waypoints: []string{"dave"}})
	is("only dave is released", path.Steering{Use: []string{"carol", "eve"}})
	do(api.SteerRequest{Word: api.SteerReset, Waypoints: []string{"eve"}})
	is("eve is avoided as configured", path.Steering{Use: []string{"carol"}, Avoid: []string{"eve"}})
	do(api.SteerRequest{Word: api.SteerReset})
	is("reset", path.Steering{Use: []string{"bob"}, Avoid: []string{"eve"}})
	if err := s.change(api.SteerRequest{Word: "like"}, now); err == nil {
		t.Error("a word that does not exist was accepted")
	}
}

// If only waypoints that do not work may be taken, the answer says what that means and how to undo it.
func TestSteeringWarns(t *testing.T) {
	at := func(name string, state api.WaypointState, kinds ...api.WaypointKind) api.Waypoint {
		return api.Waypoint{Name: name, State: state, Kinds: kinds}
	}
	up := func(name string) api.Waypoint { return at(name, api.WaypointUp) }
	down := func(name string) api.Waypoint {
		return at(name, api.WaypointDown, api.WaypointKind{Kind: "in-band", State: api.KindDown})
	}
	tunnel := at("south", api.WaypointDown, api.WaypointKind{Kind: "wireguard", State: api.KindReady})
	only := func(names ...string) api.SteerRequest {
		return api.SteerRequest{Word: api.SteerUse, Waypoints: names, Only: true}
	}
	const undo = "`dcol use --reset` undoes this"
	for name, test := range map[string]struct {
		settings config.Client
		request  api.SteerRequest
		now      []api.Waypoint
		want     string
	}{
		"down":        {request: only("south"), now: []api.Waypoint{down("south"), up("north")}, want: "south is down: connections have only their direct path until it is back; " + undo},
		"closed":      {request: only("south"), now: []api.Waypoint{at("south", api.WaypointClosed)}, want: "south is closed: connections have only their direct path until it is back; " + undo},
		"not yet":     {request: only("south"), want: "south is not connected: connections have only their direct path until it is; " + undo},
		"both down":   {request: only("south", "east"), now: []api.Waypoint{down("south")}, want: "south is down, east is not connected: connections have only their direct path until one of them is back; " + undo},
		"one is up":   {request: only("south", "east"), now: []api.Waypoint{down("south"), up("east")}},
		"a tunnel":    {request: only("south"), now: []api.Waypoint{tunnel, down("south")}, want: "south is down: connections have only their direct path, and wireguard if that still works, until it is back; " + undo},
		"one address": {request: only("south"), now: []api.Waypoint{down("south"), up("south")}},
		"moving":      {request: only("south"), now: []api.Waypoint{at("south", api.WaypointMoving)}},
		"not only":    {request: api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"south"}}, now: []api.Waypoint{down("south")}},
		"up":          {request: only("south"), now: []api.Waypoint{up("south")}},
		"as reset":    {request: api.SteerRequest{Word: api.SteerReset}, now: []api.Waypoint{down("south")}},
		"the setting": {settings: config.Client{Use: []string{"south"}, UseOnly: true}, request: api.SteerRequest{Word: api.SteerReset}, now: []api.Waypoint{down("south")}, want: "south is down: connections have only their direct path until it is back; `dcol config set client.use_only false`, then `dcol reload`, allows others"},
	} {
		s := newSteering(test.settings)
		if err := s.change(test.request, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if got := s.warning(test.now); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
