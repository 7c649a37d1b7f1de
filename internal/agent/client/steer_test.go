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
