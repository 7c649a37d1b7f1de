package measure_test

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// A rate that falls with a queue or with a burst of losses has fallen, and that shows soon. Without a sign of the
// network it has not fallen. Swings of TCP's windows are no falls, and no fall lasts for ever.
func TestFall(t *testing.T) {
	const ms = time.Millisecond
	queue := measure.Flowing{Base: 40 * ms, Trip: 90 * ms}
	free := measure.Flowing{Base: 40 * ms, Trip: 40 * ms}
	for name, c := range map[string]struct {
		before, after measure.Flowing
		to            float64 // of the usual rate
		burst         int     // samples with losses at first
		within        time.Duration
	}{
		"to a tenth, with a queue":  {queue, queue, 0.1, 0, 1800 * ms},
		"to a third, with a queue":  {queue, queue, 0.33, 0, 3000 * ms},
		"to a tenth, with losses":   {free, free, 0.1, 4, 1800 * ms},
		"to 0.7, with a queue":      {queue, queue, 0.7, 0, 0},
		"to a tenth, without signs": {queue, free, 0.1, 0, 0},
		"to a tenth, one loss":      {queue, free, 0.1, 1, 0},
	} {
		var f measure.Fall
		take := func(flows measure.Flowing, rate float64, lossy bool) {
			flows.Received, flows.Lossy = uint64(100_000*rate), lossy
			f.Take(100*ms, flows)
		}
		for i := range 100 {
			take(c.before, []float64{0.8, 0.9, 1, 1.1, 1.2}[i/4%5], i%40 == 0)
		}
		if f.Has() {
			t.Errorf("%s: it fell before", name)
		}
		fell := time.Duration(0)
		for i := range 80 {
			take(c.after, c.to, i < c.burst)
			if f.Has() && fell == 0 {
				fell = time.Duration(i+1) * 100 * ms
			}
		}
		if c.within == 0 && fell > 0 || c.within > 0 && (fell == 0 || fell > c.within) {
			t.Errorf("%s: fell after %v, want within %v", name, fell, c.within)
		}
		for range 60 {
			take(c.after, c.to, false)
		}
		if f.Has() {
			t.Errorf("%s: it has still fallen", name)
		}
	}
}

// After a program has paused, its first data may wait in a queue before the rate is the usual one again. That is no
// fall.
func TestPauseIsNoFall(t *testing.T) {
	const ms = time.Millisecond
	var f measure.Fall
	take := func(received uint64) {
		f.Take(100*ms, measure.Flowing{Base: 40 * ms, Trip: 90 * ms, Received: received})
	}
	for range 100 {
		take(100_000)
	}
	for _, pause := range []int{5, 20, 70} {
		for range pause {
			take(0)
		}
		for range 4 {
			if take(20_000); f.Has() {
				t.Errorf("after %d samples without data, it fell", pause)
			}
		}
		for range 60 {
			take(100_000)
		}
	}
}
