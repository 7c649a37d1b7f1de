package report

import (
	"time"

	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
)

// Latency describes the latencies of one run: of messages from when they were due until they
// were delivered, of requests from when they were due until they were answered, of files
// from the request until they were complete.
type Latency struct {
	Count int     `json:"count"`
	P50MS float64 `json:"p50_ms"`
	P90MS float64 `json:"p90_ms"`
	P95MS float64 `json:"p95_ms"`
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"`
}

// NewLatency describes a sample. It returns nil if the sample is empty.
func NewLatency(sample []time.Duration) *Latency {
	if len(sample) == 0 {
		return nil
	}
	ms := make([]float64, len(sample))
	for i, d := range sample {
		ms[i] = float64(d) / float64(time.Millisecond)
	}
	at := func(q float64) float64 { return stats.Quantile(ms, q) }
	return &Latency{Count: len(ms), P50MS: at(0.50), P90MS: at(0.90), P95MS: at(0.95), P99MS: at(0.99), MaxMS: at(1)}
}

func (l Latency) percentile(pct scenario.Percentile) float64 {
	switch pct {
	case scenario.P50:
		return l.P50MS
	case scenario.P90:
		return l.P90MS
	case scenario.P95:
		return l.P95MS
	default:
		return l.P99MS
	}
}

// medianLatency returns the medians over the runs, or nil if no run has latencies.
func medianLatency(runs []Run) *Latency {
	median := func(of func(Latency) float64) float64 {
		var values []float64
		for _, run := range runs {
			if run.Latency != nil {
				values = append(values, of(*run.Latency))
			}
		}
		return stats.Median(values)
	}
	count := median(func(l Latency) float64 { return float64(l.Count) })
	if !(count > 0) { // of no runs it is not a number
		return nil
	}
	return &Latency{
		Count: int(count),
		P50MS: median(func(l Latency) float64 { return l.P50MS }),
		P90MS: median(func(l Latency) float64 { return l.P90MS }),
		P95MS: median(func(l Latency) float64 { return l.P95MS }),
		P99MS: median(func(l Latency) float64 { return l.P99MS }),
		MaxMS: median(func(l Latency) float64 { return l.MaxMS }),
	}
}
