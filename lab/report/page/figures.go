package page

import (
	"fmt"
	"math"
	"strings"

	"github.com/detour-collective/dcol/lab/chart"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/stats"
)

// networkSections has a section for each network. How its plots are to be read stands
// in the first that has such plots.
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

// plots is a kind of plots, and the name of the words on how to read them.
type plots struct {
	legend string
	draw   func() ([]figure, error)
}

// plots are the kinds that suit the network.
func (n *network) plots() []plots {
	over := plots{"legend-series", n.series}
	switch axes := n.axes(); {
	case len(axes) == 2:
		return []plots{{"legend-heat", func() ([]figure, error) { return n.heatMaps(axes[0], axes[1]) }}, over}
	case len(axes) == 1:
		return []plots{{"legend-lines", func() ([]figure, error) { return n.lines(axes[0]) }}, over}
	case n.paced():
		return []plots{{"legend-latency", func() ([]figure, error) { return n.boxes(n.latencyBoxes) }}, over}
	default:
		return []plots{{"legend-boxes", func() ([]figure, error) { return n.boxes(n.goodputBoxes) }}, over}
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
		figures = append(figures, figure{Title: title(v), Caption: "medians: " + strings.Join(said, ", "), SVG: svg})
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
					Label: procedure, Summary: stats.Summarize(n.values(at)), Look: report.LookOf(procedure, i), Reference: r.PublishedMean,
				})
			}
		}
	}
	return c
}

func (n *network) latencyBoxes(v report.Variant) chart.Boxes {
	c := report.LatencyChart(nil)
	for i, procedure := range n.procedures {
		row, ok := n.row(cell{v.Name, procedure, n.congestions[0]})
		if ok && row.Latency != nil && row.Latency.P50MS > 0 { // 0 is nowhere on a logarithmic axis
			c.Boxes = append(c.Boxes, row.Latency.Box(procedure, report.LookOf(procedure, i)))
		}
	}
	return c
}

// heatMaps are of each of dcol's procedures, over TCP on the direct path and over
// the best of all plain TCP.
func (n *network) heatMaps(x, y axis) ([]figure, error) {
	var figures []figure
	var plainTCP []string
	for _, p := range n.procedures {
		if strings.HasPrefix(p, "tcp") {
			plainTCP = append(plainTCP, p)
		}
	}
	for _, procedure := range n.procedures {
		if !report.UsesDetour(procedure) {
			continue
		}
		for _, over := range []struct {
			name  string
			among []string
		}{{"plain TCP on the direct path", []string{"tcp"}}, {"the best of plain TCP on either path", plainTCP}} {
			if over.among == nil || over.name != "plain TCP on the direct path" && len(over.among) == 1 {
				continue
			}
			h := chart.Heat{XTitle: x.title(), YTitle: y.title(), XLabels: x.labels(), YLabels: y.labels()}
			low, high := math.Inf(1), math.Inf(-1)
			for _, yValue := range y.values {
				line := make([]float64, len(x.values))
				for j, xValue := range x.values {
					line[j] = n.gain(procedure, over.among, map[string]float64{x.name: xValue, y.name: yValue})
					if !math.IsNaN(line[j]) {
						low, high = min(low, line[j]), max(high, line[j])
					}
				}
				h.Ratios = append(h.Ratios, line)
			}
			if math.IsInf(low, 0) {
				continue
			}
			svg, err := h.SVG()
			if err != nil {
				return nil, err
			}
			figures = append(figures, figure{
				Title:   fmt.Sprintf("Gain of %s over %s", procedure, over.name),
				Caption: fmt.Sprintf("between %.2f and %.2f", low, high), SVG: svg,
			})
		}
	}
	return figures, nil
}

// gain is a procedure's median over the highest of others', in the variant with
// these coordinates; NaN if there is none.
func (n *network) gain(procedure string, over []string, at map[string]float64) float64 {
	v, ok := n.variantAt(at)
	if !ok {
		return math.NaN()
	}
	got, ok := n.median(cell{v.Name, procedure, n.congestions[0]})
	best := 0.0
	for _, other := range over {
		if value, ok := n.median(cell{v.Name, other, n.congestions[0]}); ok {
			best = max(best, value)
		}
	}
	if !ok || best == 0 {
		return math.NaN()
	}
	return got / best
}

// lines draws what the procedures have along an axis, over what plain TCP on the direct
// path has there: the time that files take, or else goodput.
func (n *network) lines(x axis) ([]figure, error) {
	what, of := "goodput", func(r Row) float64 { return *r.Median }
	if n.hasLatency() {
		what, of = "time", func(r Row) float64 {
			if r.Latency == nil {
				return 0
			}
			return r.Latency.P50MS
		}
	}
	c := chart.Lines{
		XTitle: x.title(), YTitle: what + " over plain TCP's", YLog: true, XLog: x.values[0] > 0 && x.values[len(x.values)-1] > 20*x.values[0],
	}
	points := 0
	for i, procedure := range n.procedures {
		line := chart.Line{Label: procedure, Look: report.LookOf(procedure, i)}
		for _, value := range x.values {
			v, _ := n.variantAt(map[string]float64{x.name: value})
			row, ok := n.row(cell{v.Name, procedure, n.congestions[0]})
			tcp, compared := n.row(cell{v.Name, "tcp", n.congestions[0]})
			if ok && compared && of(row) > 0 && of(tcp) > 0 {
				line.Points = append(line.Points, chart.Point{X: value, Y: of(row) / of(tcp)})
				points++
			}
		}
		c.Lines = append(c.Lines, line)
	}
	for _, v := range x.values {
		c.XTicks = append(c.XTicks, chart.Tick{Value: v, Label: x.tick(v)})
	}
	if points == 0 {
		return nil, nil
	}
	svg, err := c.SVG()
	return []figure{{Title: capital(what) + " over that of plain TCP on the direct path", Caption: "the numbers are in the table below", SVG: svg}}, err
}

// series draws goodput over time where something happens in the network while
// runs are made, all of a network to the same scale.
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
