package page

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/chart"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/stats"
)

// networkSections returns a section for each network. The first section with plots of a kind
// explains how to read them.
func (b *book) networkSections() ([]section, error) {
	var sections []section
	explained := map[string]bool{}
	explain := func(s *section, name string, n *network) {
		if !explained[name] {
			s.Text = append(s.Text, say(name, map[string]any{"First": n.congestions[0], "Others": strings.Join(n.congestions[1:], " and "), "Published": n.published()}))
		}
		explained[name] = true
	}
	for _, n := range b.networks {
		if len(n.shown()) == 0 {
			continue
		}
		s := section{ID: "network-" + n.name, Title: capital(n.name)}
		if n.description != "" {
			s.Text = append(s.Text, n.description)
		}
		for _, kind := range n.plots() {
			figures, err := kind.draw()
			if err != nil {
				return nil, fmt.Errorf("plot %s: %w", n.name, err)
			}
			if len(figures) > 0 {
				s.Figures = append(s.Figures, figures...)
				explain(&s, kind.legend, n)
			}
		}
		if len(n.congestions) > 1 {
			explain(&s, "congestions", n)
		}
		s.Tables = n.tables()
		if len(s.Figures)+len(s.Tables) > 0 {
			sections = append(sections, s)
		}
	}
	return sections, nil
}

// plots draws one kind of plot. legend names the text that explains it.
type plots struct {
	legend string
	draw   func() ([]figure, error)
}

// plots returns the kinds of plots that suit the network.
func (n *network) plots() []plots {
	over := plots{"legend-series", n.series}
	switch axes := n.axes(); {
	case len(axes) > 0:
		return []plots{over, {"legend-heat", func() ([]figure, error) { return n.heatMaps(axes) }}}
	case n.paced():
		return []plots{over, {"legend-latency", func() ([]figure, error) { return n.boxes(n.latencyBoxes) }}}
	default:
		return []plots{over, {"legend-boxes", func() ([]figure, error) { return n.boxes(n.goodputBoxes) }}}
	}
}

// boxes draws every variant with the first congestion control, all to the same scale.
func (n *network) boxes(of func(report.Variant) chart.Boxes) ([]figure, error) {
	var charts []chart.Boxes
	from, to := math.Inf(1), 0.0
	for _, v := range n.shown() {
		c := of(v)
		for _, box := range c.Boxes {
			if box.N > 0 {
				from, to = min(from, box.Min), max(to, box.Max)
			}
		}
		charts = append(charts, c)
	}
	var figures []figure
	for i, v := range n.shown() {
		c := charts[i]
		var said []string
		for _, box := range c.Boxes {
			if box.N > 0 {
				said = append(said, fmt.Sprintf("%s %s", box.Label, digits(box.Median)))
			}
		}
		if len(said) == 0 {
			continue
		}
		c.From, c.To = from, to
		svg, err := c.SVG()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		name := title(v)
		if len(charts) == 1 {
			name = "By procedure"
		}
		figures = append(figures, figure{Title: name, Caption: "medians: " + strings.Join(said, ", "), SVG: svg})
	}
	return figures, nil
}

func (n *network) goodputBoxes(v report.Variant) chart.Boxes {
	c := chart.Boxes{Unit: "goodput, Mbit/s", ReferenceName: "published"}
	for i, procedure := range n.procedures {
		at := cell{v.Name, procedure, n.congestions[0]}
		for _, r := range n.rows {
			if r.Variant == at.variant && r.Procedure == at.procedure && r.Congestion == at.congestion {
				c.Boxes = append(c.Boxes, chart.Box{
					Label: procedure, Summary: stats.Summarize(n.values(at)), Look: lookOf(procedure, i), Reference: r.PublishedMean,
				})
			}
		}
	}
	return c
}

func (n *network) latencyBoxes(v report.Variant) chart.Boxes {
	c := chart.Boxes{Unit: "latency, ms", Log: true, ReferenceName: "99 %"}
	for i, procedure := range n.procedures {
		row, ok := n.row(cell{v.Name, procedure, n.congestions[0]})
		if ok && p50(row) > 0 { // 0 is nowhere on a logarithmic axis
			c.Boxes = append(c.Boxes, latencyBox(*row.Latency, procedure, lookOf(procedure, i)))
		}
	}
	return c
}

// latencyBox returns a box from the median to the 95th percentile. A whisker and the reference are at the 99th percentile,
// and a circle at the longest latency.
func latencyBox(l report.Latency, label string, look chart.Look) chart.Box {
	return chart.Box{Label: label, Look: look, Reference: &l.P99MS, Summary: stats.Summary{
		N: l.Count, Min: l.P50MS, Q1: l.P50MS, Median: l.P50MS, Q3: l.P95MS, Max: l.MaxMS,
		WhiskerLow: l.P50MS, WhiskerHigh: l.P99MS, Outliers: []float64{l.MaxMS},
	}}
}

// heatMaps draws the gain of dcol's procedures in a sweep. Over two axes there is one map
// for each procedure, and one of the gain over the best of all plain TCP; over one axis
// the procedures are the rows of a single map.
func (n *network) heatMaps(axes []axis) ([]figure, error) {
	x := axes[0]
	h := chart.Heat{XTitle: x.title(), XLabels: x.labels()}
	var ours, plain []string
	for _, p := range n.procedures {
		switch {
		case usesDetour(p):
			ours = append(ours, p)
		case strings.HasPrefix(p, "tcp"):
			plain = append(plain, p)
		}
	}
	if len(axes) == 1 {
		slices.Reverse(ours) // rows go upwards
		h.YLabels = ours
		for _, p := range ours {
			h.Ratios = append(h.Ratios, n.gains(p, []string{"tcp"}, x, nil))
		}
		return drawHeat(nil, h, "Gain over plain TCP on the direct path")
	}
	y := axes[1]
	h.YTitle, h.YLabels = "\u2191 "+y.title(), y.labels()
	var figures []figure
	for _, p := range ours {
		for _, over := range []struct {
			name  string
			among []string
		}{{"plain TCP on the direct path", []string{"tcp"}}, {"the best of plain TCP on either path", plain}} {
			h.Ratios = nil
			for _, value := range y.values {
				h.Ratios = append(h.Ratios, n.gains(p, over.among, x, map[string]float64{y.name: value}))
			}
			var err error
			if figures, err = drawHeat(figures, h, fmt.Sprintf("Gain of %s over %s", p, over.name)); err != nil {
				return nil, err
			}
		}
	}
	return figures, nil
}

// drawHeat adds the map to the figures, unless it is empty.
func drawHeat(figures []figure, h chart.Heat, title string) ([]figure, error) {
	all := slices.DeleteFunc(slices.Concat(h.Ratios...), math.IsNaN)
	if len(all) == 0 {
		return figures, nil
	}
	svg, err := h.SVG()
	return append(figures, figure{Title: title, Caption: fmt.Sprintf("between %.2f and %.2f", slices.Min(all), slices.Max(all)), SVG: svg}), err
}

// gains returns the ratio of a procedure to the best of others along an axis, at a value of the
// other axis, or NaN where there is none.
func (n *network) gains(procedure string, over []string, x axis, at map[string]float64) []float64 {
	gains := make([]float64, len(x.values))
	for i, value := range x.values {
		there := maps.Clone(at)
		if there == nil {
			there = map[string]float64{}
		}
		there[x.name] = value
		v, _ := n.variantAt(there)
		gains[i] = math.NaN()
		got, ok := n.row(cell{v.Name, procedure, n.congestions[0]})
		best := 0.0
		for _, other := range over {
			if r, ok := n.row(cell{v.Name, other, n.congestions[0]}); ok {
				best = max(best, n.speed(r))
			}
		}
		if ok && best > 0 {
			gains[i] = n.speed(got) / best
		}
	}
	return gains
}

// speed returns the value that plots of a sweep show: the inverse of a file's time, or else goodput.
func (n *network) speed(r Row) float64 {
	switch {
	case !n.hasLatency():
		return *r.Median
	case p50(r) == 0:
		return 0
	}
	return 1 / p50(r)
}

// series draws goodput over time, if the network changes during runs. All plots of a network have the same scale.
func (n *network) series() ([]figure, error) {
	var figures []figure
	for _, part := range n.parts {
		if len(part.Marks) == 0 {
			continue
		}
		var charts []chart.Goodput
		var titled []figure
		top := 0.0
		for _, v := range part.Variants {
			for _, procedure := range n.procedures {
				run, ok := part.Under(n.congestions[0]).Typical(v.Name, procedure)
				if !ok || !run.Series.Drawable() {
					continue
				}
				f := figure{Title: procedure, Note: fmt.Sprintf("%.2f Mbit/s in all, longest standstill %s", run.GoodputMbps, duration(run.LongestStallMS))}
				if len(part.Variants) > 1 {
					f.Title += ", " + title(v)
				}
				f.Caption = f.Note
				c := run.Series.Chart(n.paths, part.Marks)
				charts, titled, top = append(charts, c), append(titled, f), max(top, c.Highest())
			}
		}
		for i, c := range charts {
			c.Top = top
			svg, err := c.SVG()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", titled[i].Title, err)
			}
			titled[i].SVG = svg
		}
		figures = append(figures, titled...)
	}
	return figures, nil
}
