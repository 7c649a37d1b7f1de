package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

func TestBudgets(t *testing.T) {
	renews := time.Date(2026, 12, 1, 0, 0, 0, 0, time.Local)
	s := api.Status{Client: &api.Using{Budgets: []api.Budget{
		{Scope: "total", Used: 81e9, Limit: 100e9, Level: "nearly", Renews: renews},
		{Scope: "waypoint", Waypoint: "bob", Used: 17e9, Limit: 20e9, Level: "nearly", Renews: renews},
		{Scope: "waypoint", Waypoint: "eve", Used: 20e9, Limit: 20e9, Level: "spent", Renews: renews},
		{Scope: "metered", Used: 0, Limit: 1e9, Level: "free", Renews: renews},
	}}}
	var b strings.Builder
	if err := Status(&b, s, renews); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"Detours: 81.00 GB of 100.00 GB used this month (81 %), renews on 1 Dec 00:00; when it is used up, none of these detours is taken",
		"Detours via bob: 17.00 GB of 20.00 GB used this month (85 %), renews on 1 Dec 00:00; other waypoints are taken first, and when it is used up, none of these detours is taken",
		"Detours via eve: 20.00 GB of 20.00 GB used this month (100 %), renews on 1 Dec 00:00; none of these detours carries data until then",
		"Detours from metered interfaces: 0 B of 1.00 GB used this month (0 %), renews on 1 Dec 00:00",
	} {
		if !strings.Contains(b.String(), "\n"+line+"\n") {
			t.Errorf("lacks %q:\n%s", line, &b)
		}
	}
}

func TestSamplingIsShown(t *testing.T) {
	for want, s := range map[string]*api.Sampling{
		"Measuring 80 of 900 active connections, to save processor time; those with messages come first, the others take turns\n": {Active: 900, Measured: 80},
		"": nil,
	} {
		var b strings.Builder
		p := &printer{w: &b}
		if p.sampling(s); b.String() != want {
			t.Errorf("%+v: %q, want %q", s, &b, want)
		}
	}
}

func TestExploringIsShown(t *testing.T) {
	renews := time.Date(2026, 11, 1, 9, 30, 0, 0, time.Local)
	for want, e := range map[string]api.Exploring{
		"Paths tried to measure them, in the hour until 09:30: 3 of at most 120, with 2.0 MB of at most 256.0 MB\n": {
			Tries: 3, MostTries: 120, Bytes: 2e6, MostBytes: 256e6, Renews: renews},
		"Paths tried to measure them, in the hour until 09:30: 120 of at most 120, with 2.0 MB of at most 256.0 MB; nothing more is tried\n": {
			Tries: 120, MostTries: 120, Bytes: 2e6, MostBytes: 256e6, Renews: renews},
		"": {MostTries: 120, MostBytes: 256e6},
	} {
		var b strings.Builder
		p := &printer{w: &b}
		if p.exploring(e); b.String() != want {
			t.Errorf("%+v: %q, want %q", e, &b, want)
		}
	}
}
