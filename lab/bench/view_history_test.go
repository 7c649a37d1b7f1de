package bench

import "testing"

// The estimates' error counts downloads of which there are estimates, and the bounds those of all.
func TestSavingFigures(t *testing.T) {
	estimated := saving{alone: 30, with: 20, said: 11, low: 8, high: 13}
	bounded := saving{alone: 30, with: 20, high: 12, unknown: 12}
	for _, c := range []struct {
		name    string
		network string
		pairs   []saving
		values  []float64 // of the figures
	}{
		{"estimates", "n", []saving{estimated, estimated}, []float64{10, 0}},
		{"one of two", "n", []saving{estimated, bounded}, []float64{10, 0}},
		{"bounds only", "n", []saving{bounded}, []float64{0}},
		{"beyond the bounds", "n", []saving{{alone: 30, with: 20, high: 8, unknown: 8}}, []float64{20}},
		{"nothing saved", sharedNetwork, []saving{{alone: 20, with: 21, high: 14, unknown: 14}}, []float64{0}},
		{"nothing said", "n", []saving{{alone: 30, with: 20}}, []float64{100, 100}},
	} {
		found := savingNetwork{name: c.network}.figures(c.pairs)
		if len(found) != len(c.values) {
			t.Errorf("%s: %+v", c.name, found)
			continue
		}
		for i, want := range c.values {
			if m := found[i]; m.Value < want-0.01 || m.Value > want+0.01 {
				t.Errorf("%s: %+v is not %v", c.name, m, want)
			}
		}
	}
}
