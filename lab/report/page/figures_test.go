package page

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/report"
)

func TestLatencyBoxes(t *testing.T) {
	boxes := func(l report.Latency) (string, error) {
		n := &network{procedures: []string{"dcol"}, congestions: []string{"cubic"}, rows: []Row{{Variant: "base", Procedure: "dcol", Congestion: "cubic", N: 1, Latency: &l}}}
		svg, err := n.latencyBoxes(report.Variant{Name: "base"}).SVG()
		return string(svg), err
	}
	drawn, err := boxes(report.Latency{Count: 500, P50MS: 20.5, P90MS: 21.5, P95MS: 22.5, P99MS: 41.5, MaxMS: 60.25})
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"dcol", "latency, ms", "99 %", "median", "20.50", "41.50"} {
		if !strings.Contains(drawn, word) {
			t.Errorf("the plot does not say %q", word)
		}
	}
	if _, err := boxes(report.Latency{}); err == nil {
		t.Error("drew nothing")
	}
	if _, err := boxes(report.Latency{Count: 2, P50MS: 7, P90MS: 7, P95MS: 7, P99MS: 7, MaxMS: 7}); err != nil {
		t.Errorf("latencies that are all the same: %v", err)
	}
}
