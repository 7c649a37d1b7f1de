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

// A full path shows its rate after half a second, or five round trips. The queues of a slow start do not.
func TestSteadyFull(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 2))
	early := 0
	for range 200 {
		trip := time.Duration(5+random.IntN(150)) * ms
		most := 1e6 * (1 + 50*random.Float64())
		bottleneck := most / 8 * trip.Seconds() // in bytes
		buffer := bottleneck * (0.5 + 2*random.Float64())
		noise := 0.05 * random.Float64()
		var s measure.Steady
		window, at := 14000.0, time.Duration(0)
		for {
			at += 100 * ms
			rate := min(most, 8*window/trip.Seconds())
			// The second half of each burst waits for the first, until the window fills the path.
			queue := max(window/2, window-bottleneck)
			if window *= math.Pow(2, 0.1/trip.Seconds()); window > bottleneck+buffer {
				window = 0.8 * (bottleneck + buffer)
			}
			s.Take(100*ms, measure.Flowing{
				Received: uint64(rate * 0.1 / 8 * (1 + noise*(2*random.Float64()-1))),
				Base:     trip, Trip: trip + time.Duration(8e9*queue/most), Heard: ms,
			})
			got, known := s.Full(trip)
			if !known {
				if at > 3*time.Second { // a queue of a few milliseconds does not show
					break
				}
				continue
			}
			if got < 0.8*most || got > 1.1*most {
				t.Fatalf("after %v %.1f of %.1f Mbit/s over %v", at, got/1e6, most/1e6, trip)
			}
			if at < 1100*ms {
				early++
			}
			break
		}
	}
	if early < 100 {
		t.Errorf("only %d of 200 are known within 1.1 s", early)
	}
}

func TestSteadyNotFull(t *testing.T) {
	full := func(trip time.Duration, n int, rate func(i int) float64, queued func(i int) bool) bool {
		var s measure.Steady
		for i := range n {
			f := measure.Flowing{Received: uint64(rate(i) * 0.1 / 8), Trip: trip, Base: trip, Heard: ms}
			if queued(i) {
				f.Trip += 60 * ms
			}
			s.Take(100*ms, f)
		}
		_, ok := s.Full(trip)
		return ok
	}
	same := func(int) float64 { return 8e6 }
	grows := func(i int) float64 { return 1e6 * (1 + float64(i)) }
	always := func(int) bool { return true }
	if !full(50*ms, 6, same, always) || !full(150*ms, 8, same, always) {
		t.Error("a path with a queue is not full")
	}
	if full(150*ms, 6, same, always) {
		t.Error("a long path is full after four round trips")
	}
	if full(50*ms, 6, grows, always) {
		t.Error("a path is full whose rate grows")
	}
	if full(50*ms, 6, same, func(i int) bool { return i != 3 }) {
		t.Error("a path is full that had no queue a moment ago")
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
