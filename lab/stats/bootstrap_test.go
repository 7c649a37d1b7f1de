package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The interval of the difference of two means has the true one in it, and is as wide as the theory says. What disturbs
// both values of a pair makes it no wider.
func TestPairedInterval(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	const n, difference = 2000, 0.5
	var a, b []float64
	for i := range n {
		disturbance := 0.0
		if i%2 == 0 {
			disturbance = 1000
		}
		a = append(a, disturbance+random.NormFloat64())
		b = append(b, disturbance+difference+random.NormFloat64())
	}
	mean := func(a, b []float64) float64 { return Mean(b) - Mean(a) }
	low, high := PairedInterval(a, b, mean)
	if low > difference || high < difference {
		t.Errorf("the difference is %v, and not from %v to %v", difference, low, high)
	}
	if want := 2 * 1.96 * math.Sqrt2 / math.Sqrt(n); math.Abs(high-low-want) > want/5 {
		t.Errorf("the interval is %v wide, want about %v", high-low, want)
	}
	if again, _ := PairedInterval(a, b, mean); again != low {
		t.Errorf("%v, and then %v", low, again)
	}
	if low, high := PairedInterval(a, a, mean); low != 0 || high != 0 {
		t.Errorf("equal samples differ by %v to %v", low, high)
	}
}
