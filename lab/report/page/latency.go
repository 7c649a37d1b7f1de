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

// latencies shows what messages, requests and files took: as percentiles in a
// table, and as the upper end of their distribution function.
func (b *book) latencies() ([]section, error) {
	var sections []section
	for _, n := range b.networks {
		if !n.hasLatency() || len(n.axes()) > 0 {
			continue
		}
		s := section{
			ID: "latency-" + n.name, Title: "Latency: " + n.name,
			Text: []string{n.description, "Medians over the runs of each run's percentiles, in ms. Upwards the share of " +
				"messages that took no longer, stretched towards 100 %; dashed lines are plain TCP. Congestion control: " +
				n.congestions[0] + "."},
		}
		t := table{Title: "Latencies in ms", Words: 2, Head: []string{"", "procedure", "median", "90 %", "95 %", "99 %", "longest", "in a run", "runs"}}
		for _, v := range n.shown() {
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
				l := *row.Latency
				line := report.Line{Label: procedure, Look: look(procedure, i)}
				entries := words(title(v), procedure)
				for j, ms := range []float64{l.P50MS, l.P90MS, l.P95MS, l.P99MS} {
					entries = append(entries, entry{Text: fmt.Sprintf("%.1f", ms)})
					if ms > 0 {
						line.Points = append(line.Points, report.Point{X: ms, Y: nines(shares()[j])})
					}
				}
				chart.Lines = append(chart.Lines, line)
				said = append(said, fmt.Sprintf("%s %.1f", procedure, l.P99MS))
				t.Rows = append(t.Rows, append(entries, entry{Text: fmt.Sprintf("%.1f", l.MaxMS)}, entry{Text: fmt.Sprint(l.Count)}, entry{Text: fmt.Sprint(row.N)}))
			}
			if len(said) == 0 {
				continue
			}
			svg, err := chart.SVG()
			if err != nil {
				return nil, fmt.Errorf("plot the latencies of %s, %s: %w", n.name, v.Name, err)
			}
			s.Figures = append(s.Figures, figure{Title: title(v), Caption: "99th percentiles in ms: " + strings.Join(said, ", "), SVG: svg})
		}
		s.Tables = []table{t}
		sections = append(sections, s)
	}
	return sections, nil
}

// shares are the percentiles that runs have.
func shares() []float64 { return []float64{0.5, 0.9, 0.95, 0.99} }

// nines stretches the upper end of a distribution: 90 % is 1, 99 % is 2.
func nines(share float64) float64 { return -math.Log10(1 - share) }
