package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

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
