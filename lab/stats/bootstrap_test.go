package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// each returns every value as a block of its own.
func each(values []float64) [][]float64 { return Blocks(values, 1) }

// In a hundred experiments whose true ratio is known, the interval has it in about 95.
func TestBootstrapRatioCovers(t *testing.T) {
	const experiments, n, ratio = 100, 60, 1.5
	random := rand.New(rand.NewPCG(7, 7))
	sample := func(mean float64) []float64 {
		values := make([]float64, n)
		for i := range values {
			values[i] = mean * (1 + 0.2*random.NormFloat64())
		}
		return values
	}
	covered := 0
	for range experiments {
		got := BootstrapRatio(each(sample(ratio)), each(sample(1)), Mean)
		if got.Low > got.High {
			t.Fatalf("%+v", got)
		}
		if got.Low <= ratio && ratio <= got.High {
			covered++
		}
	}
	if covered < 88 || covered > 99 {
		t.Errorf("the interval had the ratio in %d of %d experiments", covered, experiments)
	}
}

// Values that rise and fall together say less than as many independent ones.
func TestBootstrapRatioKeepsBlocks(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	const size = 50
	values := make([]float64, 2000)
	for i := range values {
		if i%size == 0 {
			values[i] = 10 + random.Float64()
		} else {
			values[i] = values[i-1]
		}
	}
	width := func(blocks [][]float64) float64 {
		i := BootstrapRatio(blocks, each([]float64{1}), Mean)
		return i.High - i.Low
	}
	if apart, together := width(each(values)), width(Blocks(values, size)); together < 4*apart {
		t.Errorf("an interval of width %v in blocks, of %v without: the square root of %d is 7", together, apart, size)
	}
}

func TestBootstrapRatioOfOneValue(t *testing.T) {
	if got := BootstrapRatio(each([]float64{3}), each([]float64{2}), Median); got != (Interval{1.5, 1.5}) {
		t.Errorf("%+v", got)
	}
	if got := BootstrapRatio(nil, each([]float64{2}), Median); !math.IsNaN(got.Low) || !math.IsNaN(got.High) {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestBlocks(t *testing.T) {
	want := [][]float64{{1, 2}, {3, 4}, {5}}
	if diff := cmp.Diff(want, Blocks([]float64{1, 2, 3, 4, 5}, 2)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

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
	got := PairedInterval(a, b, mean)
	if got.Low > difference || got.High < difference {
		t.Errorf("the difference is %v, and not in %+v", difference, got)
	}
	if want := 2 * 1.96 * math.Sqrt2 / math.Sqrt(n); math.Abs(got.High-got.Low-want) > want/5 {
		t.Errorf("the interval is %v wide, want about %v", got.High-got.Low, want)
	}
	if again := PairedInterval(a, b, mean); again != got {
		t.Errorf("%+v, and then %+v", got, again)
	}
	if none := PairedInterval(a, a, mean); none != (Interval{}) {
		t.Errorf("equal samples differ by %+v", none)
	}
}
