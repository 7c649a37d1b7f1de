package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

func TestHistory(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 3, 1, hour, 0, 0, 0, time.Local) }
	direct := api.PathUsed{Kind: "direct", Received: 105e6, Sent: 1.2e6, RTT: 30.25}
	bob := api.PathUsed{Kind: "in-band", Waypoint: "bob", Received: 1.04e9, Sent: 800, RTT: 24}
	carol := api.PathUsed{Kind: "wireguard", Waypoint: "carol", Received: 3.4e6}
	full := api.History{
		Step: api.StepHour, Problem: "history.db cannot be written: no space left on device",
		Periods: []api.Period{
			{Start: at(21), Paths: []api.PathUsed{direct}},
			{Start: at(22), Paths: []api.PathUsed{direct, bob}, Gained: api.Gained{Stalls: 2, StallTime: 12, Saved: 75, SavedLow: 59, SavedHigh: 98}},
			{Start: at(23), Paths: []api.PathUsed{bob, carol}, Gained: api.Gained{SavedHigh: 6660, SavedUnknown: 6660}},
		},
		Total: api.Period{Paths: []api.PathUsed{direct, bob, carol}, Gained: api.Gained{Stalls: 2, StallTime: 12, Saved: 75, SavedLow: 59, SavedHigh: 6758, SavedUnknown: 6660}},
	}
	shared := api.History{Step: api.StepDay, Periods: full.Periods[1:2], Total: full.Periods[1]}
	shared.Total.Gained.SavedLow = 0
	for name, h := range map[string]api.History{"full": full, "shared": shared} {
		var b strings.Builder
		if err := History(&b, h); err != nil {
			t.Fatal(err)
		}
		compare(t, "testdata/history-"+name+".txt", b.String())
		onTerminals(t, "history-"+name, []int{60, 80}, func(p *printer) error { return p.history(&h) })
	}
}

// If it is not known what the direct path carries alone, only the bounds are shown, with the reason.
func TestHistoryWithoutEstimate(t *testing.T) {
	for _, c := range []struct {
		gained api.Gained
		wants  []string
	}{
		{api.Gained{}, []string{" -  "}},
		{api.Gained{Saved: 60, SavedLow: 50, SavedHigh: 75}, []string{"60 s        50 s to 75 s"}},
		{api.Gained{SavedHigh: 66, SavedUnknown: 66}, []string{"not known   0 s to 66 s", "up to 66 s more were saved, or\n  nothing if all paths share a bottleneck"}},
		{api.Gained{Saved: 60, SavedLow: 50, SavedHigh: 141, SavedUnknown: 66}, []string{"60 s        50 s to 2 min", "up to 66 s more"}},
		{api.Gained{Saved: 60, SavedHigh: 75}, []string{"60 s        0 s to 75 s", "little was saved: the lower bound"}},
	} {
		p := api.Period{Start: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Gained: c.gained, Paths: []api.PathUsed{{Kind: "direct", Received: 1000}}}
		var b strings.Builder
		if err := History(&b, api.History{Step: api.StepDay, Periods: []api.Period{p}, Total: p}); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.wants {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%+v: %q is not in\n%s", c.gained, want, b.String())
			}
		}
		if known := c.gained.SavedUnknown == 0; known == strings.Contains(b.String(), "more were saved") {
			t.Errorf("%+v:\n%s", c.gained, b.String())
		}
	}
}

// Minutes of two days are shown with their dates.
func TestHistoryByMinute(t *testing.T) {
	at := time.Date(2026, 3, 1, 23, 59, 0, 0, time.Local)
	for days, want := range map[int]string{0: "\n  23:59  ", 1: "\n  2026-03-01 23:59  "} {
		h := api.History{Step: api.StepMinute, Periods: []api.Period{{Start: at}, {Start: at.AddDate(0, 0, days)}}}
		var b strings.Builder
		if err := History(&b, h); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%v, want %q:\n%s", err, want, &b)
		}
	}
}
