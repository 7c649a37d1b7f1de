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

// paced reports whether a program sends at a pace of its own, so that latencies say how
// the paths do and goodput does not: not files, which take what there is.
func (n *network) paced() bool { return n.hasLatency() && len(n.axes()) == 0 }

// latencies shows what messages, requests and files took: as bars from the median
// to the 99th percentile, all of a network to the same scale, and as percentiles in
// a table.
func latencies(n *network) (s section, ok bool, err error) {
	if !n.paced() {
		return section{}, false, nil
	}
	s = section{
		ID: "latency-" + n.name, Title: "Latency: " + n.name,
		Text: []string{n.description},
		Legend: "The further left, the sooner. A bar begins at the median, becomes thinner at the 90th and 95th " +
			"percentile and ends at the 99th; the ring is the longest of all. Each is the median over the runs. Hollow bars are plain TCP. " +
			n.underWhich(),
	}
	t := table{
		Title: "Latencies in ms", Words: 2,
		Note: "Beside the longest stands the 99th percentile over that of plain TCP on the direct path: more than 1 is later.",
		Head: []string{"", "procedure", "median", "90 %", "95 %", "99 %", "longest", "99 % over tcp's", "in a run", "runs"},
	}
	from, to := n.fastestAndSlowest()
	for _, v := range n.shown() {
		f, ok, err := n.percentiles(v, from, to)
		if err != nil {
			return section{}, false, fmt.Errorf("%s: %w", v.Name, err)
		}
		if ok {
			s.Figures = append(s.Figures, f)
			t.Rows = append(t.Rows, n.latencyLines(v)...)
		}
	}
	for _, procedure := range n.procedures {
		if line := n.hurtLine(procedure); line != "" {
			s.Text = append(s.Text, line)
		}
	}
	s.Tables = []table{t.grouped()}
	return s, len(s.Figures) > 0, nil
}

// latency is a procedure's in a variant; nil if there is none, or none above 0,
// which is nowhere on a logarithmic axis.
func (n *network) latency(v report.Variant, procedure string) *report.Latency {
	row, ok := n.row(cell{v.Name, procedure, n.congestions[0]})
	if !ok || row.Latency == nil || row.Latency.P50MS <= 0 {
		return nil
	}
	return row.Latency
}

// fastestAndSlowest are the ends of a scale that holds every bar.
func (n *network) fastestAndSlowest() (from, to float64) {
	from = math.Inf(1)
	for _, v := range n.variants {
		for _, procedure := range n.procedures {
			if l := n.latency(v, procedure); l != nil {
				from, to = min(from, l.P50MS), max(to, l.MaxMS)
			}
		}
	}
	return from, to
}

// percentiles draws a variant's latencies.
func (n *network) percentiles(v report.Variant, from, to float64) (f figure, ok bool, err error) {
	chart := report.LatencyChart{From: from, To: to}
	var said []string
	for i, procedure := range n.procedures {
		l := n.latency(v, procedure)
		if l == nil {
			continue
		}
		chart.Bars = append(chart.Bars, report.LatencyBar{Label: procedure, Latency: *l, Look: look(procedure, i)})
		said = append(said, fmt.Sprintf("%s %.1f", procedure, l.P99MS))
	}
	if len(said) == 0 {
		return figure{}, false, nil
	}
	svg, err := chart.SVG()
	return figure{Title: title(v), Caption: "99th percentiles in ms: " + strings.Join(said, ", "), SVG: svg}, true, err
}

// Ratios of 99th percentiles that are pointed out: a quarter more, or less.
const (
	muchLater  = 1.25
	muchSooner = 0.8
)

// toTCP is a procedure's 99th percentile over that of plain TCP on the direct path.
func (n *network) toTCP(v report.Variant, procedure string) (ratio float64, ok bool) {
	got, reference := n.latency(v, procedure), n.latency(v, "tcp")
	if got == nil || reference == nil || procedure == "tcp" {
		return 0, false
	}
	return got.P99MS / reference.P99MS, true
}

// latePlaces counts the places of networks with latencies in which a procedure with a
// detour was compared with plain TCP, and those in which it is much later; worst is the
// farthest of these.
func (b *book) latePlaces() (places, late int, ratio float64, worst string) {
	for _, n := range b.networks {
		if !n.paced() {
			continue
		}
		for _, v := range n.variants {
			for _, procedure := range n.procedures {
				r, ok := n.toTCP(v, procedure)
				if !ok || !usesDetour(procedure) {
					continue
				}
				places++
				if r < muchLater {
					continue
				}
				late++
				if r > ratio {
					ratio, worst = r, fmt.Sprintf("%s, %s", place(n, v, n.congestions[0]), procedure)
				}
			}
		}
	}
	return places, late, ratio, worst
}

// hurtLine says where one of dcol's procedures makes data late, and where it has it
// there sooner.
func (n *network) hurtLine(procedure string) string {
	if !usesDetour(procedure) {
		return ""
	}
	var later, sooner []string
	compared := 0
	for _, v := range n.variants {
		ratio, ok := n.toTCP(v, procedure)
		if !ok {
			continue
		}
		compared++
		where := fmt.Sprintf("%s (× %.2f)", title(v), ratio)
		switch {
		case ratio >= muchLater:
			later = append(later, where)
		case ratio <= muchSooner:
			sooner = append(sooner, where)
		}
	}
	if compared == 0 {
		return ""
	}
	list := func(places []string) string {
		if len(places) == 0 {
			return "nowhere"
		}
		return strings.Join(places, "; ")
	}
	return fmt.Sprintf("%s, 99th percentile beside plain TCP's on the direct path. Later by a quarter or more: %s. Sooner by a fifth or more: %s.",
		procedure, list(later), list(sooner))
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
		lines = append(lines, append(line, n.toTCPEntry(v, procedure), entry{Text: fmt.Sprint(l.Count)}, entry{Text: fmt.Sprint(row.N)}))
	}
	return lines
}

func (n *network) toTCPEntry(v report.Variant, procedure string) entry {
	ratio, ok := n.toTCP(v, procedure)
	if !ok {
		return none()
	}
	e := entry{Text: fmt.Sprintf("× %.2f", ratio)}
	switch {
	case ratio >= muchLater:
		e.Mark = bad
	case ratio <= muchSooner:
		e.Mark = good
	}
	return e
}
