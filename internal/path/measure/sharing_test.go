package measure_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// Pairs that agree distinguish two paths with one bottleneck from two paths with one each. Pairs that disagree do
// not.
func TestSharing(t *testing.T) {
	type pair struct{ gain, change float64 }
	for name, c := range map[string]struct {
		pairs []pair
		want  measure.Relation
	}{
		"none":                        {nil, measure.Unknown},
		"two are too few":             {[]pair{{5, -5}, {5, -5}}, measure.Unknown},
		"one bottleneck":              {[]pair{{5, -5}, {4, -3.8}, {5, -5.2}}, measure.Shared},
		"two bottlenecks":             {[]pair{{5, 0.2}, {4, -0.3}, {5, 0}}, measure.Apart},
		"the other gained, too":       {[]pair{{5, 5}, {4, 3.9}, {5, 5.3}}, measure.Apart},
		"half of it":                  {[]pair{{5, -2.5}, {4, -2}, {5, -2.4}}, measure.Unknown},
		"one of three fell by chance": {[]pair{{5, -5}, {5, 0}, {5, 0.1}}, measure.Unknown},
		"two of three did":            {[]pair{{5, -5}, {5, -4.8}, {5, 0.1}}, measure.Unknown},
		"nothing was gained":          {[]pair{{0, -5}, {0, -5}, {0, -5}}, measure.Unknown},
		"a gain of almost nothing":    {[]pair{{1e-9, -5}, {5, 0}, {5, 0}}, measure.Unknown},
	} {
		var s measure.Sharing
		for _, p := range c.pairs {
			s.Add(p.gain, p.change)
		}
		if got := s.Result(); got.Relation != c.want || math.IsNaN(got.Lost) {
			t.Errorf("%s: %+v, want %v", name, got, c.want)
		}
	}
}

// Other traffic on two paths with bottlenecks of their own hardly ever looks like one bottleneck. Older pairs are
// forgotten.
func TestSharingWithCrossTraffic(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	wrong := 0
	const runs = 2000
	for range runs {
		var s measure.Sharing
		for range 3 + random.IntN(10) {
			s.Add(5, 10*(random.Float64()-0.5)) // the other path gives up to twice as much, or nothing
		}
		if s.Result().Relation == measure.Shared {
			wrong++
		}
	}
	if wrong > runs/40 {
		t.Errorf("%d of %d are said to share a bottleneck", wrong, runs)
	}
	var s measure.Sharing
	for range 20 {
		s.Add(5, -5)
	}
	for range 8 {
		s.Add(5, 0)
	}
	if got := s.Result(); got.Relation != measure.Apart || got.Pairs != 8 {
		t.Errorf("%+v after the paths were changed", got)
	}
}
