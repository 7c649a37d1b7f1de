package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
)

// Measured has a result's runs with one congestion control. Expectations are decided on it
// (scenario.Measurements).
type Measured struct {
	*Result
	Congestion string
}

// Under returns the runs with a congestion control.
func (r *Result) Under(congestion string) Measured { return Measured{r, congestion} }

// Congestions lists the congestion controls of the rows, in their order.
func (r *Result) Congestions() []string {
	var names []string
	for _, row := range r.Rows {
		if !slices.Contains(names, row.Congestion) {
			names = append(names, row.Congestion)
		}
	}
	return names
}

// Valid returns the valid runs of a procedure in a variant, in the order in which they were made.
func (m Measured) Valid(variant, procedure string) []Run {
	var runs []Run
	for _, run := range m.Runs {
		if run.Valid() && run.Variant == variant && run.Procedure == procedure && run.Congestion == m.Congestion {
			runs = append(runs, run)
		}
	}
	return runs
}

// Row returns the row of a procedure in a variant.
func (m Measured) Row(variant, procedure string) (Row, bool) {
	for _, row := range m.Rows {
		if row.Variant == variant && row.Procedure == procedure && row.Congestion == m.Congestion {
			return row, true
		}
	}
	return Row{}, false
}

func (m Measured) each(variant, procedure string, value func(Run) float64) []float64 {
	var values []float64
	for _, run := range m.Valid(variant, procedure) {
		values = append(values, value(run))
	}
	return values
}

// Goodput implements scenario.Measurements.
func (m Measured) Goodput(variant, procedure string) []float64 {
	return m.each(variant, procedure, func(run Run) float64 { return run.GoodputMbps })
}

// Share implements scenario.Measurements.
func (m Measured) Share(variant, procedure, path string) []float64 {
	return m.each(variant, procedure, func(run Run) float64 {
		total := int64(0)
		for _, p := range run.Paths {
			total += p.Bytes
		}
		return float64(run.PathBytes(path)) / float64(max(total, 1))
	})
}

// Stall implements scenario.Measurements.
func (m Measured) Stall(variant, procedure string) []float64 {
	return m.each(variant, procedure, func(run Run) float64 { return run.LongestStallMS })
}

// Retransmitted implements scenario.Measurements.
func (m Measured) Retransmitted(variant, procedure string) []float64 {
	return m.each(variant, procedure, func(run Run) float64 {
		total := int64(0)
		for _, p := range run.Paths {
			total += p.Retransmitted
		}
		return float64(total)
	})
}

// Completion implements scenario.Measurements.
func (m Measured) Completion(variant, procedure string) []float64 {
	return m.each(variant, procedure, func(run Run) float64 { return run.CompletionSeconds })
}

// LatencyMS implements scenario.Measurements.
func (m Measured) LatencyMS(variant, procedure string, pct scenario.Percentile) []float64 {
	var values []float64
	for _, run := range m.Valid(variant, procedure) {
		if run.Latency != nil {
			values = append(values, run.Latency.percentile(pct))
		}
	}
	return values
}

// Summarize fills in the rows and decides the expectations from the runs, for the given
// variants, procedures and congestion controls. It leaves out expectations about other
// procedures.
func (r *Result) Summarize(variants, procedures, congestions []string, expects []scenario.Expectation) {
	r.Rows, r.Expectations = []Row{}, []Expectation{}
	for _, c := range congestions {
		for _, v := range variants {
			for _, p := range procedures {
				r.Rows = append(r.Rows, r.Under(c).sum(v, p))
			}
		}
	}
	for _, row := range r.Rows {
		if row.Failed > 0 {
			r.Expectations = append(r.Expectations, neverFails(row))
		}
	}
	for _, c := range congestions {
		for _, v := range variants {
			for _, e := range expects {
				if e.About(v, procedures, variants) {
					r.Expectations = append(r.Expectations, r.Under(c).decide(e, v))
				}
			}
		}
	}
}

// neverFails returns the expectation that dcol does not fail, which every scenario has, for a row
// that does not meet it.
func neverFails(row Row) Expectation {
	failed, allowed := float64(row.Failed), 0.0
	return Expectation{
		Description: "dcol does not crash, hang or break what it carries", Expression: fmt.Sprintf("failed runs of %q == 0", row.Procedure),
		Variant: row.Variant, Congestion: row.Congestion, Left: &failed, Right: &allowed,
	}
}

func (m Measured) decide(e scenario.Expectation, variant string) Expectation {
	verdict := e.Evaluate(m, variant)
	decided := Expectation{
		Description: e.Description, Expression: e.That, Variant: variant, Congestion: m.Congestion,
		Met: verdict.Met, Left: verdict.Left, Right: verdict.Right,
	}
	if verdict.Err != nil {
		decided.Error = verdict.Err.Error()
	}
	return decided
}

// sum returns the row of a procedure in a variant.
func (m Measured) sum(variant, procedure string) Row {
	row := Row{Variant: variant, Procedure: procedure, Congestion: m.Congestion, PathBytes: map[string]float64{}}
	for _, run := range m.Runs {
		switch {
		case run.Variant != variant || run.Procedure != procedure || run.Congestion != m.Congestion || run.Valid():
		case run.Failed():
			row.Failed++
		default:
			row.Discarded++
		}
	}
	row.N = len(m.Valid(variant, procedure))
	if row.N == 0 {
		return row
	}
	s := stats.Summarize(m.Goodput(variant, procedure))
	row.GoodputMbps = Distribution{Mean: s.Mean, SD: s.SD, Min: s.Min, Q1: s.Q1, Median: s.Median, Q3: s.Q3, Max: s.Max}
	row.SteadyMbps = stats.Median(m.each(variant, procedure, func(run Run) float64 { return run.SteadyMbps }))
	for _, path := range m.Paths {
		bytes := stats.Median(m.each(variant, procedure, func(run Run) float64 { return float64(run.PathBytes(path)) }))
		if bytes > 0 {
			row.PathBytes[path] = bytes
		}
	}
	row.Retransmitted = stats.Median(m.Retransmitted(variant, procedure))
	row.CompletionSeconds = stats.Median(m.Completion(variant, procedure))
	row.LongestStallMS = stats.Summarize(m.Stall(variant, procedure)).Max
	row.Latency = medianLatency(m.Valid(variant, procedure))
	row.CPUShare = stats.Median(m.each(variant, procedure, func(run Run) float64 { return run.CPUShare }))
	return row
}

// Typical returns the run of a procedure that is nearest to the median goodput. ok is false
// without valid runs.
func (m Measured) Typical(variant, procedure string) (typical Run, ok bool) {
	median := stats.Median(m.Goodput(variant, procedure))
	for i, run := range m.Valid(variant, procedure) {
		if i == 0 || math.Abs(run.GoodputMbps-median) < math.Abs(typical.GoodputMbps-median) {
			typical, ok = run, true
		}
	}
	return typical, ok
}
