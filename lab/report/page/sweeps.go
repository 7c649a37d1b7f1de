package page

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/report"
)

// axis is what a network's variants differ in, with the values that occur,
// ascending.
type axis struct {
	name, label, unit string
	values            []float64
}

// title names an axis with its unit, unless the values have it.
func (a axis) title() string {
	label := a.label
	if label == "" {
		label = a.name
	}
	if a.unit == kilobytes {
		return label
	}
	label, remark, remarked := strings.Cut(label, ";")
	label = fmt.Sprintf("%s, %s", label, a.unit)
	if remarked { // a remark is none about the unit
		label += " (" + strings.TrimSpace(remark) + ")"
	}
	return label
}

// baseVariant is the network as declared.
const baseVariant = "base"

// kilobytes is a unit over whose values a reader would stumble: 100000 KB.
const kilobytes = "KB"

// tick is a value as it stands at the axis.
func (a axis) tick(v float64) string {
	switch {
	case a.unit == kilobytes && v >= 1000:
		v /= 1000
		return number(&v) + " MB"
	case a.unit == kilobytes:
		return number(&v) + " KB"
	default:
		return number(&v)
	}
}

// axes are those of a network's variants on which they have two places or more, if
// all but the network as declared lie on them. The networks of 2017 have none: there
// one thing or another was varied, never both.
func (n *network) axes() []axis {
	if n.inPapers() {
		return nil
	}
	var axes []axis
	for _, v := range n.variants {
		if len(v.Coordinates) == 0 && v.Name != baseVariant {
			return nil
		}
		for _, c := range v.Coordinates {
			at := slices.IndexFunc(axes, func(a axis) bool { return a.name == c.Axis })
			if at < 0 {
				at = len(axes)
				axes = append(axes, axis{name: c.Axis, label: c.Label, unit: c.Unit})
			}
			if !slices.Contains(axes[at].values, c.Value) {
				axes[at].values = append(axes[at].values, c.Value)
			}
		}
	}
	axes = slices.DeleteFunc(axes, func(a axis) bool { return len(a.values) < 2 })
	for i := range axes {
		slices.Sort(axes[i].values)
	}
	return axes
}

// sweep draws a network whose variants lie on axes: on two as heat maps of the
// gain, on one as lines.
func sweep(n *network) (s section, ok bool, err error) {
	axes := n.axes()
	if len(axes) == 0 || len(n.shown()) == 0 {
		return section{}, false, nil
	}
	s = section{ID: "sweep-" + n.name, Title: "Gain: " + n.name, Text: []string{n.description}}
	if len(axes) == 1 {
		s.Title = capital(quantityOf(n).of) + ": " + n.name
		s.Legend = "Medians of the runs; dashed lines are plain TCP. Where lines lie on each other the table tells them apart. " + n.underWhich()
		s.Figures, s.Tables, err = n.lines(axes[0])
	} else {
		s.Legend = "The number in a cell is the gain, the median goodput over that of plain TCP: 2 is twice as much. Blue is above 1, " +
			"red below. To have the best of plain TCP a program would have to know which path that is. " + n.underWhich()
		s.Figures, err = n.heatMaps(axes[0], axes[1])
	}
	return s, len(s.Figures) > 0, err
}

// heatMaps are of each of dcol's procedures, over TCP on the direct path and over
// the best of all plain TCP.
func (n *network) heatMaps(x, y axis) ([]figure, error) {
	var figures []figure
	plainTCP := slices.DeleteFunc(slices.Clone(n.procedures), func(p string) bool { return !strings.HasPrefix(p, "tcp") })
	for _, procedure := range n.procedures {
		if !usesDetour(procedure) {
			continue
		}
		for _, over := range []struct {
			name  string
			among []string
		}{{"plain TCP on the direct path", []string{"tcp"}}, {"the best of plain TCP on either path", plainTCP}} {
			if len(over.among) == 0 || len(over.among) == 1 && over.name != "plain TCP on the direct path" {
				continue
			}
			h := report.HeatChart{XTitle: x.title(), YTitle: y.title(), XLabels: x.labels(), YLabels: y.labels()}
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

func (a axis) labels() []string {
	labels := make([]string, len(a.values))
	for i, v := range a.values {
		labels[i] = a.tick(v)
	}
	return labels
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

// variantAt is the first variant with these coordinates.
func (n *network) variantAt(at map[string]float64) (report.Variant, bool) {
	for _, v := range n.variants {
		fits := 0
		for name, value := range at {
			if c := coordinate(v, name); c != nil && *c == value {
				fits++
			}
		}
		if fits == len(at) {
			return v, true
		}
	}
	return report.Variant{}, false
}

// quantity is what is drawn along an axis.
type quantity struct {
	name, of string // its name in plots, and what its ratio is called
	value    func(Row) float64
	show     func(float64) string
}

// quantityOf is what files take if a network has latencies, and goodput otherwise.
func quantityOf(n *network) quantity {
	if n.hasLatency() {
		return quantity{"median time, s", "time", func(r Row) float64 {
			if r.Latency == nil {
				return math.NaN()
			}
			return r.Latency.P50MS / 1000
		}, func(seconds float64) string { return duration(1000 * seconds) }}
	}
	return quantity{"goodput, Mbit/s", "goodput", func(r Row) float64 { return *r.Median }, digits}
}

// lines draws the procedures along an axis: what they have, and what that is of
// plain TCP's on the direct path.
func (n *network) lines(x axis) ([]figure, []table, error) {
	q := quantityOf(n)
	name, _, _ := strings.Cut(q.name, ",")
	t := table{Title: name + ", and its ratio to plain TCP's", Words: 1, Head: append([]string{x.title()}, n.procedures...)}
	chart := report.LineChart{
		XTitle: x.title(), YTitle: q.name, XLog: x.values[0] > 0 && x.values[len(x.values)-1] > 20*x.values[0],
		YLog: n.hasLatency(), FromZero: !n.hasLatency(),
	}
	for _, v := range x.values {
		chart.XTicks = append(chart.XTicks, report.Tick{Value: v, Label: x.tick(v)})
		t.Rows = append(t.Rows, n.alongLine(x, v, q))
	}
	ratios := chart
	ratios.YTitle, ratios.YLog, ratios.FromZero = q.of+" over plain TCP's", false, true
	points := 0
	for i, procedure := range n.procedures {
		line := report.Line{Label: procedure, Look: look(procedure, i)}
		ratio := line
		for _, value := range x.values {
			got, ok := n.along(x, value, procedure, q.value)
			if !ok {
				continue
			}
			points++
			line.Points = append(line.Points, report.Point{X: value, Y: got})
			if reference, ok := n.along(x, value, "tcp", q.value); ok {
				ratio.Points = append(ratio.Points, report.Point{X: value, Y: got / reference})
			}
		}
		chart.Lines, ratios.Lines = append(chart.Lines, line), append(ratios.Lines, ratio)
	}
	if points == 0 {
		return nil, nil, nil
	}
	var figures []figure
	for _, plot := range []struct {
		title string
		chart report.LineChart
	}{{name, chart}, {q.of + " over that of plain TCP on the direct path", ratios}} {
		if !slices.ContainsFunc(plot.chart.Lines, func(l report.Line) bool { return len(l.Points) > 0 }) {
			continue
		}
		svg, err := plot.chart.SVG()
		if err != nil {
			return nil, nil, err
		}
		figures = append(figures, figure{Title: capital(plot.title), Caption: "the numbers are in the table below", SVG: svg})
	}
	t.Title = capital(t.Title)
	return figures, []table{t}, nil
}

// alongLine is a line of the table: each procedure's value, and below it the ratio.
func (n *network) alongLine(x axis, value float64, q quantity) []entry {
	line := words(x.tick(value))
	reference, haveReference := n.along(x, value, "tcp", q.value)
	for _, procedure := range n.procedures {
		got, ok := n.along(x, value, procedure, q.value)
		switch {
		case !ok:
			line = append(line, none())
		case haveReference && procedure != "tcp":
			line = append(line, entry{Text: q.show(got), Below: []string{fmt.Sprintf("× %.3f", got/reference)}})
		default:
			line = append(line, entry{Text: q.show(got)})
		}
	}
	return line
}

// capital has a capital letter first.
func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// along is a procedure's value at a place of an axis.
func (n *network) along(x axis, value float64, procedure string, of func(Row) float64) (float64, bool) {
	v, ok := n.variantAt(map[string]float64{x.name: value})
	if !ok {
		return 0, false
	}
	row, ok := n.row(cell{v.Name, procedure, n.congestions[0]})
	if !ok {
		return 0, false
	}
	got := of(row)
	return got, got > 0
}
