package path

import (
	"testing"
	"time"
)

// What waits for a detour shows that it is a burden only after its slow start, which takes longer on a long detour.
func TestBurdenAfterSlowStart(t *testing.T) {
	start := time.Unix(1e9, 0)
	b := burden{since: start, held: 300e3, carried: 150e3}
	for _, test := range []struct {
		age, trip time.Duration
		heavy     bool
	}{
		{900 * time.Millisecond, 20 * time.Millisecond, false},
		{1100 * time.Millisecond, 20 * time.Millisecond, true},
		{1100 * time.Millisecond, 170 * time.Millisecond, false},
		{2100 * time.Millisecond, 170 * time.Millisecond, true},
		{3900 * time.Millisecond, time.Second, false},
		{4100 * time.Millisecond, time.Second, true},
	} {
		if heavy := b.isHeavy(test.trip, start.Add(test.age)); heavy != test.heavy {
			t.Errorf("%v old, a round trip of %v: %v", test.age, test.trip, heavy)
		}
	}
}

// A few bytes that wait on an idle connection do not make its detours burdens.
func TestIdleConnectionHasNoBurdens(t *testing.T) {
	start := time.Unix(1e9, 0)
	if b := (burden{since: start, held: 3}); b.isHeavy(20*time.Millisecond, start.Add(10*time.Second)) {
		t.Error("a detour is a burden because of three bytes")
	}
}
