package path

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// A turn does not end in the middle of a tryout, but the tryout does not make it much longer.
func TestTurnEndsAfterTryout(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	trying := &conn{token: 1, kind: measure.Bulk, tryouts: &tryouts{challenge: &challenge{}}}
	other := &conn{token: 2, kind: measure.Bulk}
	x := closeSampling{watched: []*conn{trying, other}, turns: map[*conn]time.Time{trying: now, other: now}}
	for _, step := range []struct {
		after         time.Duration
		trying, other bool
	}{
		{turnLasts - time.Second, true, true},
		{turnLasts + time.Second, true, false},
		{turnLasts + finishesIn - time.Second, true, false},
		{turnLasts + finishesIn + time.Second, false, false},
	} {
		x.endTurns(now.Add(step.after))
		_, first := x.turns[trying]
		_, second := x.turns[other]
		if first != step.trying || second != step.other {
			t.Errorf("after %v: %v and %v have a place", step.after, first, second)
		}
	}
}
