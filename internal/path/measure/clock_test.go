package measure_test

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// After the clock was set, the estimates of the last seconds forget what was before, or count it as part of the
// present. They never show a rate that did not exist.
func TestWindowsWhenTheClockIsSet(t *testing.T) {
	for _, jump := range []time.Duration{
		-365 * 24 * time.Hour, -24 * time.Hour, -5 * time.Second, -3 * time.Second, -time.Second, 0, 3 * time.Second, 5 * time.Second, 24 * time.Hour,
	} {
		now := time.Unix(1_800_000_000, 0)
		var goodput measure.Goodput
		var sent measure.Sent
		take := func(bytes uint64) {
			now = now.Add(100 * time.Millisecond)
			goodput.Take(now, 100*time.Millisecond, bytes, 0)
			sent.Take(now, 100, 1, 0)
		}
		for range 50 {
			take(100_000)
		}
		now = now.Add(jump)
		for i := range 50 {
			take(50_000)
			_, receive := goodput.Rates(now)
			if receive < 3.99e6 || receive > 8.01e6 {
				t.Fatalf("%v, sample %d: %.0f", jump, i, receive)
			}
			if p, known := sent.Lost(now); known && (p < 0.0099 || p > 0.0101) {
				t.Fatalf("%v, sample %d: loses %v", jump, i, p)
			}
		}
		if _, receive := goodput.Rates(now); receive > 4.8e6 && (jump < -5*time.Second || jump >= 0) {
			t.Errorf("%v: %.0f after five seconds", jump, receive)
		}
	}
}
