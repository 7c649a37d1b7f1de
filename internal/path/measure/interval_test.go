package measure

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

func TestInterval(t *testing.T) {
	for _, test := range []struct{ share, packets, least, most float64 }{
		{0, 100, 0, 0.037}, {0.05, 100, 0.0215, 0.1118}, {0.1, 50, 0.0435, 0.2136}, {1, 100, 0.963, 1}, // as R's prop.test without correction
		{0.5, 29, 0, 1}, {0.5, 0, 0, 1}, {math.NaN(), 100, 0, 1}, {-1, 100, 0, 1}, {2, 100, 0, 1}, {0.1, math.Inf(1), 0, 1},
	} {
		least, most := Interval(test.share, test.packets)
		if math.Abs(least-test.least) > 5e-4 || math.Abs(most-test.most) > 5e-4 {
			t.Errorf("%v of %v: %.4f to %.4f, want %.4f to %.4f", test.share, test.packets, least, most, test.least, test.most)
		}
	}
}

func TestIntervalIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share, packets := rapid.Float64().Draw(t, "share"), rapid.Float64().Draw(t, "packets")
		least, most := Interval(share, packets)
		if !(least >= 0 && least <= most && most <= 1) {
			t.Fatalf("%v to %v", least, most)
		}
		if share >= 0 && share <= 1 && (least > share+1e-9 || most < share-1e-9) {
			t.Fatalf("%v is not between %v and %v", share, least, most)
		}
	})
}

// The true loss is within the interval as often as promised, for the losses and packet counts of sessions.
func TestIntervalHoldsTheTruth(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, loss := range []float64{0.005, 0.02, 0.05, 0.1} {
		const runs, packets = 4000, 60
		above := 0 // runs in which more loss is claimed than there is
		for range runs {
			lost := 0
			for range packets {
				if random.Float64() < loss {
					lost++
				}
			}
			if least, _ := Interval(float64(lost)/packets, packets); least > loss {
				above++
			}
		}
		if share := float64(above) / runs; share > 0.06 {
			t.Errorf("loss of %v: too much is claimed in %.3f of all runs", loss, share)
		}
	}
}
