package report

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/detour-collective/dcol/lab/chart"
	"github.com/detour-collective/dcol/lab/stats"
)

// WritePlots draws, for every variant and congestion control, the distributions of
// goodput, the latencies where there are any and, of each procedure's median run,
// goodput over time.
func (r *Result) WritePlots(dir string, marks []Mark) error {
	for _, congestion := range r.Congestions() {
		for _, variant := range r.variants() {
			if err := r.Under(congestion).writePlots(dir, variant, marks); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m Measured) writePlots(dir, variant string, marks []Mark) error {
	goodput, latencies := chart.Boxes{Unit: "goodput, Mbit/s"}, LatencyChart(nil)
	for _, row := range m.Rows {
		if row.Variant != variant || row.Congestion != m.Congestion || row.N == 0 {
			continue
		}
		look := LookOf(row.Procedure, len(goodput.Boxes))
		goodput.Boxes = append(goodput.Boxes, chart.Box{Label: row.Procedure, Look: look, Summary: stats.Summarize(m.Goodput(variant, row.Procedure))})
		if anyLatency([]Row{row}) { // of one file alone they are no distribution
			latencies.Boxes = append(latencies.Boxes, row.Latency.Box(row.Procedure, look))
		}
		if err := m.plotRun(dir, variant, row.Procedure, marks); err != nil {
			return err
		}
	}
	if len(latencies.Boxes) > 0 {
		latencies.Title, latencies.Subtitle = "Latency by procedure: median to 95 %, 99 %, longest", m.conditions(variant)
		if err := latencies.Save(filepath.Join(dir, "latency-"+m.file(variant))); err != nil {
			return err
		}
	}
	if len(goodput.Boxes) == 0 {
		return nil
	}
	goodput.Title, goodput.Subtitle = "Goodput by procedure", m.conditions(variant)
	return goodput.Save(filepath.Join(dir, "goodput-"+m.file(variant)))
}

// file is the variant's part of a file's name.
func (m Measured) file(variant string) string {
	if len(m.Congestions()) > 1 {
		return variant + "-" + m.Congestion
	}
	return variant
}

// conditions says in a line what the numbers depend on.
func (m Measured) conditions(variant string) string {
	return fmt.Sprintf("%s, %s; %s, Linux %s, links by %s",
		m.Scenario, variant, m.Congestion, m.Environment.Kernel, m.Environment.Backend)
}

func (r *Result) variants() []string {
	var names []string
	for _, row := range r.Rows {
		if !slices.Contains(names, row.Variant) {
			names = append(names, row.Variant)
		}
	}
	return names
}

// Typical returns the run of a procedure that is nearest to the median goodput; there is
// none if no run counts.
func (m Measured) Typical(variant, procedure string) (typical Run, ok bool) {
	median := stats.Median(m.Goodput(variant, procedure))
	for i, run := range m.Valid(variant, procedure) {
		if i == 0 || math.Abs(run.GoodputMbps-median) < math.Abs(typical.GoodputMbps-median) {
			typical, ok = run, true
		}
	}
	return typical, ok
}

func (m Measured) plotRun(dir, variant, procedure string, marks []Mark) error {
	typical, ok := m.Typical(variant, procedure)
	if !ok || !typical.Series.Drawable() {
		return nil
	}
	g := typical.Series.Chart(m.Paths, marks)
	g.Title, g.Subtitle = fmt.Sprintf("%s: goodput by path, %s Mbit/s", procedure, formatMbps(typical.GoodputMbps)), m.conditions(variant)
	return g.Save(filepath.Join(dir, fmt.Sprintf("series-%s-%s", m.file(variant), procedure)))
}
