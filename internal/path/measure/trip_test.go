package measure_test

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// A round trip counts for a while after it was measured. Then the base counts.
func TestTrip(t *testing.T) {
	const ms = time.Millisecond
	data := func(least, smoothed time.Duration) func(*measure.Trip, time.Time) {
		return func(trip *measure.Trip, now time.Time) { trip.Take(now, least, smoothed, true) }
	}
	idle := func(least, smoothed time.Duration) func(*measure.Trip, time.Time) {
		return func(trip *measure.Trip, now time.Time) { trip.Take(now, least, smoothed, false) }
	}
	probe := func(took time.Duration) func(*measure.Trip, time.Time) {
		return func(trip *measure.Trip, now time.Time) { trip.TakeProbe(now, took) }
	}
	arrives := func(took time.Duration) func(*measure.Trip, time.Time) {
		return func(trip *measure.Trip, now time.Time) { trip.TakeReceived(now, took) }
	}
	for name, c := range map[string]struct {
		takes     []func(*measure.Trip, time.Time) // a second apart
		later     time.Duration                    // after the last
		base, now time.Duration
	}{
		"nothing":                      {nil, 0, 0, 0},
		"the join":                     {[]func(*measure.Trip, time.Time){idle(40*ms, 40*ms)}, 0, 40 * ms, 40 * ms},
		"an old smoothed one":          {[]func(*measure.Trip, time.Time){idle(40*ms, 300*ms)}, 0, 40 * ms, 40 * ms},
		"a queue":                      {[]func(*measure.Trip, time.Time){data(40*ms, 100*ms)}, 4 * time.Second, 40 * ms, 100 * ms},
		"long ago":                     {[]func(*measure.Trip, time.Time){data(40*ms, 100*ms)}, 6 * time.Second, 40 * ms, 40 * ms},
		"joined in a queue":            {[]func(*measure.Trip, time.Time){data(300*ms, 300*ms), data(40*ms, 40*ms), data(40*ms, 100*ms)}, 0, 40 * ms, 100 * ms},
		"forgotten by the kernel":      {[]func(*measure.Trip, time.Time){data(40*ms, 300*ms), data(280*ms, 300*ms)}, 0, 40 * ms, 300 * ms},
		"a probe in a queue":           {[]func(*measure.Trip, time.Time){idle(40*ms, 40*ms), probe(340 * ms)}, 9 * time.Second, 40 * ms, 340 * ms},
		"a probe long ago":             {[]func(*measure.Trip, time.Time){idle(40*ms, 40*ms), probe(340 * ms)}, 11 * time.Second, 40 * ms, 40 * ms},
		"no more than a probe's error": {[]func(*measure.Trip, time.Time){idle(40*ms, 40*ms), probe(49 * ms)}, 0, 40 * ms, 40 * ms},
		"the queue has drained":        {[]func(*measure.Trip, time.Time){data(40*ms, 340*ms), probe(41 * ms)}, 0, 40 * ms, 40 * ms},
		"one probe below the base":     {[]func(*measure.Trip, time.Time){idle(300*ms, 300*ms), probe(40 * ms)}, 0, 300 * ms, 300 * ms},
		"two of them":                  {[]func(*measure.Trip, time.Time){idle(300*ms, 300*ms), probe(40 * ms), probe(44 * ms)}, 0, 54 * ms, 54 * ms},
		"one arrival below the base":   {[]func(*measure.Trip, time.Time){idle(300*ms, 300*ms), arrives(40 * ms)}, 0, 300 * ms, 300 * ms},
		"a second of arrivals":         {[]func(*measure.Trip, time.Time){idle(300*ms, 300*ms), arrives(45 * ms), arrives(44 * ms)}, 0, 45 * ms, 45 * ms},
		"a coincidence among arrivals": {[]func(*measure.Trip, time.Time){idle(40*ms, 40*ms), arrives(44 * ms), arrives(2 * ms), arrives(1 * ms), arrives(50 * ms)}, 0, 40 * ms, 40 * ms},
		"pauses between arrivals":      {[]func(*measure.Trip, time.Time){idle(40*ms, 40*ms), arrives(700 * ms), arrives(700 * ms)}, 0, 40 * ms, 40 * ms},
		"a coincidence among probes":   {[]func(*measure.Trip, time.Time){idle(40*ms, 40*ms), probe(42 * ms), probe(2 * ms), probe(41 * ms)}, 0, 40 * ms, 40 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			var trip measure.Trip
			now := time.Unix(1_800_000_000, 0)
			for _, take := range c.takes {
				now = now.Add(time.Second)
				take(&trip, now)
			}
			now = now.Add(c.later)
			if base, latest := trip.Base(), trip.Now(now); base != c.base || latest != c.now {
				t.Errorf("base %v, now %v; want base %v, now %v", base, latest, c.base, c.now)
			}
		})
	}
}
