package report

import (
	"fmt"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/detour-collective/dcol/lab/report/stats"
)

// Box is one distribution of a box plot.
type Box struct {
	Label  string
	Values []float64
}

// BoxChart is a plot of distributions side by side: the box is the quartiles
// and the median, the whiskers reach 1.5 interquartile ranges, circles are
// beyond (Tukey).
type BoxChart struct {
	Title, Subtitle string
	Unit            string // of the values, with their quantity
	Boxes           []Box
	Levels          []Level
}

// Boxes draws the chart to base.svg and base.png.
func Boxes(b BoxChart, base string) error {
	p := newPlot(b.Unit, "")
	rows := make([]boxRow, 0, len(b.Boxes))
	high := math.Inf(-1)
	for i, box := range b.Boxes {
		if len(box.Values) == 0 {
			continue
		}
		row := boxRow{Summary: stats.Summarize(box.Values), at: float64(len(b.Boxes) - 1 - i), label: box.Label}
		if len(b.Boxes) <= len(palette) { // a colour twice would look like kinship
			row.index = i
		}
		high = max(high, row.Max)
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return fmt.Errorf("draw %s: there are no values to draw", base)
	}
	for _, l := range b.Levels {
		high = max(high, l.Mbps)
	}
	p.Add(verticalRules{})
	for _, row := range rows {
		p.Add(row)
	}
	p.X.Min, p.X.Max = 0, high*1.06
	if p.X.Max == 0 {
		p.X.Max = 1
	}
	p.Y.Min, p.Y.Max = -0.6, float64(len(b.Boxes))-0.4
	p.X.Tick.Marker = evenTicks{8}
	names := make([]plot.Tick, len(rows))
	for i, row := range rows {
		names[i] = plot.Tick{Value: row.at, Label: row.label}
	}
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	ch := chart{title: b.Title, subtitle: b.Subtitle, plot: p, width: chartWidth, right: 52}
	ch.height = vg.Length(len(b.Boxes))*38 + 120
	ch.over = func(_, data draw.Canvas) {
		x, y := p.Transforms(&data)
		drawUprights(data, x, b.Levels)
		style := label(10, ink, true)
		for _, row := range rows {
			data.FillText(style, vg.Point{X: data.Max.X + 8, Y: y(row.at) - style.Font.Size*0.4}, formatMbps(row.Median))
		}
		data.FillText(label(9.5, faint, false), vg.Point{X: data.Max.X + 8, Y: data.Max.Y - 9.5}, "median")
	}
	return ch.save(base)
}

// boxRow is one box, lying on its side so that its name can be read.
type boxRow struct {
	stats.Summary
	at    float64
	index int
	label string
}

// Plot implements plot.Plotter.
func (b boxRow) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	const half = vg.Length(9)
	middle, line := y(b.at), colour(b.index)
	stroke := draw.LineStyle{Color: line, Width: vg.Points(1.2)}
	c.StrokeLine2(stroke, x(b.WhiskerLow), middle, x(b.Q1), middle)
	c.StrokeLine2(stroke, x(b.Q3), middle, x(b.WhiskerHigh), middle)
	for _, end := range []float64{b.WhiskerLow, b.WhiskerHigh} {
		c.StrokeLine2(stroke, x(end), middle-half/2, x(end), middle+half/2)
	}
	box := []vg.Point{
		{X: x(b.Q1), Y: middle - half}, {X: x(b.Q3), Y: middle - half},
		{X: x(b.Q3), Y: middle + half}, {X: x(b.Q1), Y: middle + half}, {X: x(b.Q1), Y: middle - half},
	}
	c.FillPolygon(alpha(line, 0x50), box)
	c.StrokeLines(stroke, box)
	c.StrokeLine2(draw.LineStyle{Color: line, Width: vg.Points(2.6)}, x(b.Median), middle-half, x(b.Median), middle+half)
	circle := draw.GlyphStyle{Color: line, Radius: vg.Points(2.4), Shape: draw.RingGlyph{}}
	for _, o := range b.Outliers {
		c.DrawGlyph(circle, vg.Point{X: x(o), Y: middle})
	}
}

func drawUprights(data draw.Canvas, x func(float64) vg.Length, levels []Level) {
	style := label(9.5, ink, false)
	for _, l := range levels {
		at := x(l.Mbps)
		data.StrokeLine2(thin(ink, vg.Points(4), vg.Points(3)), at, data.Min.Y, at, data.Max.Y)
		left := max(at-style.Width(l.Label)-4, data.Min.X)
		data.FillText(style, vg.Point{X: left, Y: data.Max.Y - style.Font.Size}, l.Label)
	}
}

// verticalRules are the lines behind the data at each labelled tick.
type verticalRules struct{}

// Plot implements plot.Plotter.
func (verticalRules) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	for _, tick := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		c.StrokeLine2(thin(rule), x(tick.Value), c.Min.Y, x(tick.Value), c.Max.Y)
	}
}
