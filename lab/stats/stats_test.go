package stats

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// Reference values from Python's statistics.stdev and
// statistics.quantiles(method='inclusive').
func TestSummarize(t *testing.T) {
	tests := []struct {
		name   string
		sample []float64
		want   Summary
	}{
		{"one", []float64{7}, Summary{N: 1, Mean: 7, Min: 7, Q1: 7, Median: 7, Q3: 7, Max: 7, WhiskerLow: 7, WhiskerHigh: 7}},
		{"even", []float64{4, 1, 3, 2}, Summary{
			N: 4, Mean: 2.5, SD: 1.2909944487358056, Min: 1, Q1: 1.75, Median: 2.5, Q3: 3.25, Max: 4,
			WhiskerLow: 1, WhiskerHigh: 4,
		}},
		{"outliers", []float64{9.41, 9.42, 9.40, 9.43, 9.41, 9.42, 3.0, 12.0}, Summary{
			N: 8, Mean: 8.93625, SD: 2.5635184387310903, Min: 3, Q1: 9.4075, Median: 9.415, Q3: 9.4225, Max: 12,
			WhiskerLow: 9.40, WhiskerHigh: 9.43, Outliers: []float64{3, 12},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Summarize(test.sample)
			if diff := cmp.Diff(test.want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("Summarize (-want +got):\n%s", diff)
			}
		})
	}
	if empty := Summarize(nil); empty.N != 0 || !math.IsNaN(empty.Median) {
		t.Errorf("of nothing: %+v", empty)
	}
}

func TestQuantileInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sample := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 50).Draw(t, "sample")
		s := Summarize(sample)
		ordered := []float64{s.Min, s.WhiskerLow, s.Q1, s.Median, s.Q3, s.WhiskerHigh, s.Max}
		for i := 1; i < len(ordered); i++ {
			if ordered[i-1] > ordered[i]+1e-9 {
				t.Fatalf("not ascending: %v", ordered)
			}
		}
		inside := 0
		for _, x := range sample {
			if x >= s.WhiskerLow && x <= s.WhiskerHigh {
				inside++
			}
		}
		if inside+len(s.Outliers) != s.N {
			t.Fatalf("%d inside the whiskers and %d outliers of %d", inside, len(s.Outliers), s.N)
		}
	})
}
