package report

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/lab/scenario"
)

func TestNewLatency(t *testing.T) {
	var sample []time.Duration
	for i := range 101 { // in no order; the n-th percentile is n ms
		sample = append(sample, time.Duration(i*37%101)*time.Millisecond)
	}
	want := &Latency{Count: 101, P50MS: 50, P90MS: 90, P95MS: 95, P99MS: 99, MaxMS: 100}
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
	if diff := cmp.Diff(want, NewLatency(sample), near); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := NewLatency(nil); got != nil {
		t.Errorf("of nothing: %+v", got)
	}
}

// waiting is a result of runs with latencies, made up; dcol's third does not count,
// and one of tcp's has none.
func waiting() *Result {
	r := &Result{
		Schema: Schema, Scenario: "waiting", Environment: Environment{Kernel: "6.18.0", CPUs: 2, Backend: "wire", Congestion: "cubic"},
		Paths: []string{"direct"},
	}
	add := func(procedure, discarded string, l *Latency) {
		r.Runs = append(r.Runs, Run{
			Variant: "base", Procedure: procedure, Congestion: "cubic", Discarded: discarded, GoodputMbps: 0.5, Latency: l,
		})
	}
	add("tcp", "", &Latency{Count: 500, P50MS: 21, P90MS: 22, P95MS: 30, P99MS: 180, MaxMS: 420})
	add("tcp", "", &Latency{Count: 500, P50MS: 23, P90MS: 24, P95MS: 32, P99MS: 220, MaxMS: 1420})
	add("tcp", "", nil)
	add("dcol", "", &Latency{Count: 500, P50MS: 20.5, P90MS: 21.5, P95MS: 22.5, P99MS: 41.5, MaxMS: 60.25})
	add("dcol", "late", &Latency{Count: 500, P50MS: 900, P90MS: 900, P95MS: 900, P99MS: 900, MaxMS: 900})
	r.Summarize([]string{"base"}, []string{"tcp", "dcol"}, []string{"cubic"}, []scenario.Expectation{
		{Description: "the detour takes the tail away", That: `latency_p99("dcol") < 0.5 * latency_p99("tcp")`},
	})
	return r
}

func TestRowsHaveMedianLatency(t *testing.T) {
	m := waiting().Under("cubic")
	tcp, _ := m.Row("base", "tcp")
	if want := (&Latency{Count: 500, P50MS: 22, P90MS: 23, P95MS: 31, P99MS: 200, MaxMS: 920}); !cmp.Equal(want, tcp.Latency) {
		t.Errorf("tcp: %+v, want %+v", tcp.Latency, want)
	}
	if e := m.Expectations[0]; !e.Met || e.Left == nil || *e.Left != 41.5 || *e.Right != 100 {
		t.Errorf("%+v", e)
	}
	for pct, want := range map[scenario.Percentile]float64{scenario.P50: 20.5, scenario.P90: 21.5, scenario.P95: 22.5, scenario.P99: 41.5} {
		if got := m.LatencyMS("base", "dcol", pct); len(got) != 1 || got[0] != want {
			t.Errorf("percentile %d of dcol: %v, want %v alone", pct, got, want)
		}
	}
}

func TestLatencyTextGolden(t *testing.T) {
	var b bytes.Buffer
	if err := waiting().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "latency.txt", b.Bytes())
}

// Results without latencies have no columns of them.
func TestNoLatency(t *testing.T) {
	var b bytes.Buffer
	if err := example().WriteText(&b); err != nil || strings.Contains(b.String(), "p99") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}
