package report

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/detour-collective/dcol/lab/report/stats"
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
	var boxes []Box
	for _, row := range m.Rows {
		if row.Variant != variant || row.Congestion != m.Congestion || row.N == 0 {
			continue
		}
		boxes = append(boxes, Box{Label: row.Procedure, Values: m.Goodput(variant, row.Procedure)})
		if err := m.plotRun(dir, variant, row.Procedure, marks); err != nil {
			return err
		}
	}
	if len(boxes) == 0 {
		return nil
	}
	if err := m.plotLatencies(dir, variant); err != nil {
		return err
	}
	return Boxes(BoxChart{
		Title: "Goodput by procedure", Subtitle: m.conditions(variant), Unit: "goodput, Mbit/s", Boxes: boxes,
	}, filepath.Join(dir, "goodput-"+m.file(variant)))
}

// LatencyBars are the procedures' latencies in a variant, in the rows' order; those of
// one file alone, which are no distribution, are left out.
func (m Measured) LatencyBars(variant string) []LatencyBar {
	var bars []LatencyBar
	for _, row := range m.Rows {
		if row.Variant == variant && row.Congestion == m.Congestion && anyLatency([]Row{row}) {
			bars = append(bars, LatencyBar{Label: row.Procedure, Latency: *row.Latency})
		}
	}
	if len(bars) <= len(palette) { // a colour twice would look like kinship
		for i := range bars {
			bars[i].Look.Colour = i
		}
	}
	return bars
}

func (m Measured) plotLatencies(dir, variant string) error {
	bars := m.LatencyBars(variant)
	if len(bars) == 0 {
		return nil
	}
	return Latencies(LatencyChart{
		Title: "Latency by procedure: median, 90, 95 and 99 %, longest", Subtitle: m.conditions(variant), Bars: bars,
	}, filepath.Join(dir, "latency-"+m.file(variant)))
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

// Typical is the run of a procedure that is nearest to the median goodput; there is
// none if no run counts.
func (m Measured) Typical(variant, procedure string) (typical Run, ok bool) {
	median := stats.Median(m.Goodput(variant, procedure))
	for i, run := range m.Valid(variant, procedure) {
		if i == 0 || abs(run.GoodputMbps-median) < abs(typical.GoodputMbps-median) {
			typical, ok = run, true
		}
	}
	return typical, ok
}

// plotRun draws goodput over time of the typical run.
func (m Measured) plotRun(dir, variant, procedure string, marks []Mark) error {
	typical, ok := m.Typical(variant, procedure)
	if !ok || len(typical.Series.Paths) == 0 || len(typical.Series.Paths[0].Mbps) == 0 {
		return nil // shorter than a step
	}
	return Goodput(GoodputChart{
		Title:    fmt.Sprintf("%s: goodput by path, %s Mbit/s", procedure, formatMbps(typical.GoodputMbps)),
		Subtitle: m.conditions(variant),
		Series:   typical.Series,
		Paths:    m.Paths,
		Marks:    marks,
	}, filepath.Join(dir, fmt.Sprintf("series-%s-%s", m.file(variant), procedure)))
}

func abs(x float64) float64 {
	if x < 0 {
		return -x
	}
	return x
}
