package chart

import (
	"errors"
	"fmt"
	"html/template"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/detour-collective/dcol/lab/stats"
)

// Look gives each kind of box its colour and fill. Boxes of one colour belong together.
type Look struct {
	Colour int  // index into the palette, which repeats
	Hollow bool // not filled
}

// Box is one distribution of a box plot. Without values it keeps its place.
type Box struct {
	Label string
	stats.Summary
	Look Look
	// Reference is a value to compare with, or nil.
	Reference *float64
}

// Boxes is a plot of distributions, one per row: a box from the first to the third quartile with a line at
// the median, whiskers to the furthest values within 1.5 interquartile ranges, circles for values beyond
// (Tukey), and a diamond at the reference. The numbers of each median and reference are printed beside the
// plot.
type Boxes struct {
	Unit   string // of the values, with their quantity
	Boxes  []Box
	Levels []Level
	// From and To are values that the axis shows at least, so that several charts have
	// the same one. One that is not logarithmic begins at 0.
	From, To      float64
	Log           bool
	ReferenceName string // what the diamonds are
}

// SVG returns the chart as a part of a page.
func (b Boxes) SVG() (template.HTML, error) {
	d, err := b.drawing()
	if err != nil {
		return "", fmt.Errorf("draw a box plot: %w", err)
	}
	return d.inline()
}

// numberWidth is the room beside the data for a column of numbers.
const numberWidth = vg.Length(44)

func (b Boxes) drawing() (drawing, error) {
	p := newPlot(b.Unit, "")
	p.Y.Padding = 5
	p.Add(rules{vertical: true})
	var ends []float64
	drawn, referred := false, false
	names := make(plot.ConstantTicks, len(b.Boxes))
	at := func(i int) float64 { return float64(len(b.Boxes) - 1 - i) }
	for i, box := range b.Boxes {
		names[i] = plot.Tick{Value: at(i), Label: box.Label}
		p.Add(boxRow{box, at(i)})
		if box.N > 0 {
			drawn = true
			ends = append(ends, box.Min, box.Max)
		}
		if box.Reference != nil {
			referred = true
			ends = append(ends, *box.Reference)
		}
	}
	if !drawn {
		return drawing{}, errors.New("there are no values to draw")
	}
	if b.To > 0 {
		ends = append(ends, b.From, b.To)
	}
	for _, l := range b.Levels {
		ends = append(ends, l.Value)
	}
	if !b.Log {
		ends = append(ends, 0)
	}
	var err error
	if p.X.Min, p.X.Max, p.X.Scale, err = scale(ends, b.Log); err != nil {
		return drawing{}, err
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = evenTicks{6}, names
	if b.Log {
		p.X.Tick.Marker = decades{}
	} else {
		p.X.Min = 0
	}
	p.Y.Min, p.Y.Max = -0.6, float64(len(b.Boxes))-0.1 // with room for the headings of the numbers
	d := drawing{plot: p, width: inlineWidth, height: vg.Length(len(b.Boxes))*22 + 62, right: numberWidth}
	if referred {
		d.right += numberWidth + 12
	}
	d.over = func(_, data draw.Canvas) {
		x, y := p.Transforms(&data)
		drawUprights(data, x, b.Levels)
		for i, box := range b.Boxes {
			box.number(data, y(at(i)))
		}
		heading := label(9.5, faint, false)
		top := data.Max.Y - heading.Font.Size
		data.FillText(heading, vg.Point{X: data.Max.X + 8, Y: top}, "median")
		if referred {
			data.FillText(heading, vg.Point{X: data.Max.X + 8 + numberWidth, Y: top}, "\u25c7 "+b.ReferenceName)
		}
	}
	return d, nil
}

// number writes the box's median beside the data, and its reference beside that.
func (b Box) number(data draw.Canvas, middle vg.Length) {
	bold, light := label(10, ink, true), label(10, ink, false)
	bottom := middle - bold.Font.Size*0.4
	if b.N > 0 {
		data.FillText(bold, vg.Point{X: data.Max.X + 8, Y: bottom}, number(b.Median))
	}
	if b.Reference != nil {
		data.FillText(light, vg.Point{X: data.Max.X + 8 + numberWidth, Y: bottom}, number(*b.Reference))
	}
}

// boxRow is one box, lying on its side so that its name can be read.
type boxRow struct {
	Box
	at float64
}

// Plot implements plot.Plotter.
func (b boxRow) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	const half = vg.Length(7)
	middle, line := y(b.at), colour(b.Look.Colour)
	if b.N > 0 {
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
		if !b.Look.Hollow {
			c.FillPolygon(alpha(line, 0x50), box)
		}
		c.StrokeLines(stroke, box)
		c.StrokeLine2(draw.LineStyle{Color: line, Width: vg.Points(2.6)}, x(b.Median), middle-half, x(b.Median), middle+half)
		circle := draw.GlyphStyle{Color: line, Radius: vg.Points(2.2), Shape: draw.RingGlyph{}}
		for _, o := range b.Outliers {
			c.DrawGlyph(circle, vg.Point{X: x(o), Y: middle})
		}
	}
	if b.Reference != nil {
		drawDiamond(c, vg.Point{X: x(*b.Reference), Y: middle}, 4)
	}
}

func drawDiamond(c draw.Canvas, at vg.Point, r vg.Length) {
	c.StrokeLines(draw.LineStyle{Color: ink, Width: vg.Points(1.1)}, []vg.Point{
		{X: at.X - r, Y: at.Y}, {X: at.X, Y: at.Y + r}, {X: at.X + r, Y: at.Y}, {X: at.X, Y: at.Y - r}, {X: at.X - r, Y: at.Y},
	})
}

func drawUprights(data draw.Canvas, x func(float64) vg.Length, levels []Level) {
	style := label(9.5, ink, false)
	for _, l := range levels {
		at := x(l.Value)
		data.StrokeLine2(thin(ink, vg.Points(4), vg.Points(3)), at, data.Min.Y, at, data.Max.Y)
		left := max(at-style.Width(l.Label)-4, data.Min.X)
		data.FillText(style, vg.Point{X: left, Y: data.Max.Y - style.Font.Size}, l.Label)
	}
}
