package report

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/detour-collective/dcol/lab/report/stats"
)

// WritePlots draws, for every variant, the distributions of goodput and, of
// each procedure's median run, goodput over time.
func (r *Result) WritePlots(dir string, marks []Mark) error {
	for _, variant := range r.variants() {
		var boxes []Box
		for _, row := range r.Rows {
			if row.Variant != variant || row.N == 0 {
				continue
			}
			boxes = append(boxes, Box{Label: row.Procedure, Values: r.Goodput(variant, row.Procedure)})
			if err := r.plotRun(dir, variant, row.Procedure, marks); err != nil {
				return err
			}
		}
		if len(boxes) == 0 {
			continue
		}
		err := Boxes(BoxChart{
			Title: "Goodput by procedure", Subtitle: r.conditions(variant), Unit: "goodput, Mbit/s", Boxes: boxes,
		}, filepath.Join(dir, "goodput-"+variant))
		if err != nil {
			return err
		}
	}
	return nil
}

// conditions says in a line what the numbers depend on.
func (r *Result) conditions(variant string) string {
	return fmt.Sprintf("%s, %s; %s, Linux %s, links by %s",
		r.Scenario, variant, r.Environment.Congestion, r.Environment.Kernel, r.Environment.Backend)
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

// plotRun draws goodput over time of the run nearest to the median.
func (r *Result) plotRun(dir, variant, procedure string, marks []Mark) error {
	median := stats.Median(r.Goodput(variant, procedure))
	var typical Run
	for i, run := range r.valid(variant, procedure) {
		if i == 0 || abs(run.GoodputMbps-median) < abs(typical.GoodputMbps-median) {
			typical = run
		}
	}
	if len(typical.Series.Paths) == 0 || len(typical.Series.Paths[0].Mbps) == 0 {
		return nil // shorter than a step
	}
	return Goodput(GoodputChart{
		Title:    fmt.Sprintf("%s: goodput by path, %s Mbit/s", procedure, formatMbps(typical.GoodputMbps)),
		Subtitle: r.conditions(variant),
		Series:   typical.Series,
		Marks:    marks,
	}, filepath.Join(dir, fmt.Sprintf("series-%s-%s", variant, procedure)))
}

func abs(x float64) float64 {
	if x < 0 {
		return -x
	}
	return x
}
