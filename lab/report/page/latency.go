package page

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/report"
)

// hasLatency reports whether any of a network's runs measured latencies.
func (n *network) hasLatency() bool {
	return slices.ContainsFunc(n.rows, func(r Row) bool { return r.Latency != nil })
}

// latencies shows what messages, requests and files took: as the upper end of
// their distribution function, and as percentiles in a table.
func latencies(n *network) (s section, ok bool, err error) {
	if !n.hasLatency() || len(n.axes()) > 0 {
		return section{}, false, nil
	}
	s = section{
		ID: "latency-" + n.name, Title: "Latency: " + n.name,
		Text: []string{n.description, "Medians over the runs of each run's percentiles. Upwards is the share that took no longer, " +
			"stretched towards 100 %; dashed lines are plain TCP. " + n.underWhich()},
	}
	t := table{Title: "Latencies in ms", Words: 2, Head: []string{"", "procedure", "median", "90 %", "95 %", "99 %", "longest", "in a run", "runs"}}
	for _, v := range n.shown() {
		f, ok, err := n.percentiles(v)
		if err != nil {
			return section{}, false, fmt.Errorf("%s: %w", v.Name, err)
		}
		if ok {
			s.Figures = append(s.Figures, f)
			t.Rows = append(t.Rows, n.latencyLines(v)...)
		}
	}
	s.Tables = []table{t.grouped()}
	return s, len(s.Figures) > 0, nil
}

// percentiles draws a variant's latencies.
func (n *network) percentiles(v report.Variant) (f figure, ok bool, err error) {
	chart := report.LineChart{XTitle: "latency, ms", YTitle: "share, %", XLog: true}
	for _, share := range shares() {
		chart.YTicks = append(chart.YTicks, report.Tick{Value: nines(share), Label: fmt.Sprintf("%.0f", 100*share)})
	}
	var said []string
	for i, procedure := range n.procedures {
		row, ok := n.row(cell{v.Name, procedure, n.congestions[0]})
		if !ok || row.Latency == nil {
			continue
		}
		line := report.Line{Label: procedure, Look: look(procedure, i)}
		l := row.Latency
		for j, ms := range []float64{l.P50MS, l.P90MS, l.P95MS, l.P99MS} {
			if ms > 0 { // or else it is nowhere on the axis
				line.Points = append(line.Points, report.Point{X: ms, Y: nines(shares()[j])})
			}
		}
		chart.Lines = append(chart.Lines, line)
		if len(line.Points) > 0 {
			said = append(said, fmt.Sprintf("%s %.1f", procedure, l.P99MS))
		}
	}
	if len(said) == 0 {
		return figure{}, false, nil
	}
	svg, err := chart.SVG()
	return figure{Title: title(v), Caption: "99th percentiles in ms: " + strings.Join(said, ", "), SVG: svg}, true, err
}

func (n *network) latencyLines(v report.Variant) [][]entry {
	var lines [][]entry
	for _, procedure := range n.procedures {
		row, ok := n.row(cell{v.Name, procedure, n.congestions[0]})
		if !ok || row.Latency == nil {
			continue
		}
		l := row.Latency
		line := words(title(v), procedure)
		for _, ms := range []float64{l.P50MS, l.P90MS, l.P95MS, l.P99MS, l.MaxMS} {
			line = append(line, entry{Text: fmt.Sprintf("%.1f", ms)})
		}
		lines = append(lines, append(line, words(fmt.Sprint(l.Count), fmt.Sprint(row.N))...))
	}
	return lines
}

// shares are the percentiles that runs have.
func shares() []float64 { return []float64{0.5, 0.9, 0.95, 0.99} }

// nines stretches the upper end of a distribution: 90 % is 1, 99 % is 2.
func nines(share float64) float64 { return -math.Log10(1 - share) }
