package measure_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// The rate of a subflow is known soon after it has ceased to grow, and not much earlier, on random paths.
func TestSteadyRate(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 1))
	for range 200 {
		trip := time.Duration(5+random.IntN(200)) * ms
		most := 1e6 * (1 + 50*random.Float64())
		noise := 0.1 * random.Float64()
		var s measure.Steady
		for range random.IntN(20) { // a backup until then
			s.Take(100*ms, measure.Flowing{Trip: trip, Base: trip})
		}
		window, full, at := 14000*8.0, time.Duration(0), time.Duration(0)
		for {
			at += 100 * ms
			rate := min(most, window/trip.Seconds())
			window *= math.Pow(2, 0.1/trip.Seconds())
			if rate == most && full == 0 {
				full = at
			}
			s.Take(100*ms, measure.Flowing{Received: uint64(rate * 0.1 / 8 * (1 + noise*(2*random.Float64()-1))), Trip: trip, Base: trip})
			got, known := s.Rate(trip)
			if !known {
				if at > full+1500*ms && at > 2500*ms || at > 3200*ms {
					t.Fatalf("%.1f Mbit/s over %v is not known after %v, full after %v", most/1e6, trip, at, full)
				}
				continue
			}
			if got < 0.75*most && at < measure.SteadyMost || got > 1.1*most {
				t.Fatalf("after %v %.1f of %.1f Mbit/s over %v", at, got/1e6, most/1e6, trip)
			}
			break
		}
	}
}

func TestSteadyPressed(t *testing.T) {
	flow := func(queue time.Duration, times int) bool {
		var s measure.Steady
		for i := range 20 {
			f := measure.Flowing{Received: 100000, Trip: 20 * ms, Base: 20 * ms, Heard: ms}
			if i%10 < times {
				f.Trip += queue
			}
			s.Take(100*ms, f)
		}
		return s.Pressed()
	}
	if !flow(50*ms, 10) || !flow(50*ms, 8) || flow(50*ms, 5) || flow(5*ms, 10) {
		t.Error("a queue in most samples shows that the network is the limit, and nothing else does")
	}
}
