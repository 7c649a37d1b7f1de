package path

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// A connection does not lose its slot in the middle of a tryout, but keeps it not much longer for that.
func TestSlotEndsAfterTryout(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	trying := &conn{token: 1, kind: measure.Bulk, tryouts: &tryouts{challenge: &challenge{}}}
	other := &conn{token: 2, kind: measure.Bulk}
	x := closeSampling{watched: []*conn{trying, other}, slots: map[*conn]time.Time{trying: now, other: now}}
	for _, step := range []struct {
		after         time.Duration
		trying, other bool
	}{
		{slotLasts - time.Second, true, true},
		{slotLasts + time.Second, true, false},
		{slotLasts + finishesIn - time.Second, true, false},
		{slotLasts + finishesIn + time.Second, false, false},
	} {
		x.endSlots(now.Add(step.after))
		_, first := x.slots[trying]
		_, second := x.slots[other]
		if first != step.trying || second != step.other {
			t.Errorf("after %v: %v and %v have a slot", step.after, first, second)
		}
	}
}
