package scenario

import (
	"math"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/stats"
)

// measured is results made up for expectations.
type measured struct{}

func (measured) Goodput(variant, procedure string) []float64 {
	return map[string][]float64{
		"base tcp": {9, 9.5, 9.4}, "base detour": {9.2, 9.1, 9.3}, "base dcol": {18.5, 18.4, 18.6},
		"lossy tcp": {5},
	}[variant+" "+procedure]
}

func (measured) Share(_, _, path string) []float64 {
	return map[string][]float64{"direct": {0.5, 0.6, 0.4}, "waypoint": {0.5, 0.4, 0.6}}[path]
}
func (measured) Stall(string, string) []float64         { return []float64{10, 250, 40} }
func (measured) Retransmitted(string, string) []float64 { return []float64{0, 7, 3} }
func (measured) LatencyMS(_, _ string, pct Percentile) []float64 {
	return []float64{float64(pct), float64(pct) + 2, 3 * float64(pct)}
}
func (measured) Completion(string, string) []float64 { return []float64{4, 2, 3} }

func TestEvaluate(t *testing.T) {
	nan := math.NaN() // in place of a side that has no value
	tests := []struct {
		that        string
		variant     string
		met         bool
		left, right float64
	}{
		{`median("dcol") >= 0.985 * (median("tcp") + median("detour"))`, "base", true, 18.5, 0.985 * (9.4 + 9.2)},
		{`median("dcol") / (median("tcp") + median("detour")) > 0.999`, "base", false, 18.5 / 18.6, 0.999},
		{`mean("tcp") > 9.29`, "base", true, 9.3, 9.29},
		{`min("tcp") < max("tcp")`, "base", true, 9, 9.5},
		{`q1("tcp") <= q3("tcp")`, "base", true, 9.2, 9.45},
		{`sd("dcol") < 0.11`, "base", true, 0.1, 0.11},
		{`share("dcol", "waypoint") >= 0.4 and share("dcol", "direct") >= 0.4`, "base", true, nan, nan},
		{`stall("dcol") < 200`, "base", false, 250, 200},
		{`retransmitted("dcol") <= 3`, "base", true, 3, 3},
		{`completion("dcol") < 3`, "base", false, 3, 3},
		{`latency_p50("dcol") < latency_p90("dcol")`, "base", true, 52, 92},
		{`latency_p95("dcol") > latency_p99("dcol")`, "base", false, 97, 101},
		{`median("tcp") < 6`, "lossy", true, 5, 6},
		{`not (median("tcp") < 6)`, "lossy", false, nan, nan},
		{`median("tcp") <= 0.5 * median("tcp", "base")`, "lossy", false, 5, 4.7},
		{`share("tcp", "direct", "base") < median("tcp", "lossy")`, "base", true, 0.5, 5},
	}
	for _, test := range tests {
		v := Expectation{That: test.that}.Evaluate(measured{}, test.variant)
		if v.Err != nil || v.Met != test.met {
			t.Errorf("%s: %v, %v; want %v", test.that, v.Met, v.Err, test.met)
		}
		for side, want := range map[*float64]float64{v.Left: test.left, v.Right: test.right} {
			switch {
			case side == nil && !math.IsNaN(want):
				t.Errorf("%s: no value, want %v", test.that, want)
			case side != nil && !(math.Abs(*side-want) < 1e-9):
				t.Errorf("%s: %v, want %v", test.that, *side, want)
			}
		}
	}
}

func TestEvaluateWithoutRuns(t *testing.T) {
	v := Expectation{That: `median("dcol") > 1`}.Evaluate(measured{}, "lossy")
	if v.Met || v.Err == nil || !strings.Contains(v.Err.Error(), `no valid run of "dcol" in variant "lossy"`) {
		t.Errorf("met %v, error %v", v.Met, v.Err)
	}
}

// The language's own median would sort differently; ours is the report's.
func TestFunctionsAreTheReports(t *testing.T) {
	v := Expectation{That: `median("tcp") == 9.4`}.Evaluate(measured{}, "base")
	if want := stats.Median((measured{}).Goodput("base", "tcp")); !v.Met || *v.Left != want {
		t.Errorf("median is %v, want %v", *v.Left, want)
	}
}
