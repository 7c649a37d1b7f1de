package chart

import (
	"cmp"
	"errors"
	"html/template"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Line is one line of a Lines through its points, in the order given.
type Line struct {
	Label  string
	Points []Point
	Look   Look
}

// Point is a place in a Lines.
type Point struct{ X, Y float64 }

// Tick is a labelled place on an axis.
type Tick struct {
	Value float64
	Label string
}

// Lines is a plot of lines, named at their ends.
type Lines struct {
	XTitle, YTitle string
	XTicks         []Tick // none: round numbers
	XLog, YLog     bool   // logarithmic axes: every value must be above 0
	Lines          []Line
}

// SVG returns the chart as a part of a page. Lines without points are left out.
func (l Lines) SVG() (template.HTML, error) {
	var points []Point
	lines := slices.DeleteFunc(slices.Clone(l.Lines), func(line Line) bool { return len(line.Points) == 0 })
	for _, line := range lines {
		points = append(points, line.Points...)
	}
	if len(points) == 0 {
		return "", errors.New("draw lines: there are no points to draw")
	}
	p := newPlot(l.XTitle, l.YTitle)
	p.Add(horizontalRules{})
	for _, line := range lines {
		p.Add(line)
	}
	xs, ys := make([]float64, len(points)), make([]float64, len(points))
	for i, pt := range points {
		xs[i], ys[i] = pt.X, pt.Y
	}
	var err error
	if p.X.Min, p.X.Max, p.X.Scale, err = scale(xs, l.XLog); err != nil {
		return "", err
	}
	if p.Y.Min, p.Y.Max, p.Y.Scale, err = scale(ys, l.YLog); err != nil {
		return "", err
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = marker(l.XTicks, l.XLog), marker(nil, l.YLog)
	d := drawing{plot: p, width: inlineWidth, height: 250}
	names := make([]name, len(lines))
	for i, line := range lines {
		names[i] = name{text: line.Label, value: line.Points[len(line.Points)-1].Y, stroke: line.stroke()}
	}
	d.nameEnds(names)
	return d.inline()
}

// scale is the range of an axis with a little room at both ends.
func scale(values []float64, logarithmic bool) (low, high float64, n plot.Normalizer, err error) {
	low, high = slices.Min(values), slices.Max(values)
	if logarithmic {
		if low <= 0 {
			return 0, 0, nil, errors.New("draw lines: a value on a logarithmic axis is not above 0")
		}
		room := math.Pow(high/low, 0.05)
		if high == low {
			room = 1.5
		}
		return low / room, high * room, plot.LogScale{}, nil
	}
	room := (high - low) * 0.06
	if high == low {
		room = max(math.Abs(high)*0.1, 1e-9)
	}
	return low - room, high + room, plot.LinearScale{}, nil
}

func marker(ticks []Tick, logarithmic bool) plot.Ticker {
	if len(ticks) == 0 && logarithmic {
		return decades{}
	}
	if len(ticks) == 0 {
		return evenTicks{6}
	}
	marks := make(plot.ConstantTicks, len(ticks))
	for i, t := range ticks {
		marks[i] = plot.Tick{Value: t.Value, Label: t.Label}
	}
	return marks
}

// decades puts ticks at 1, 2 and 5 of every power of ten; over a wide range at
// 1 only, and over one that has fewer than two of them at even distances.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(low, high float64) []plot.Tick {
	steps := []float64{1, 2, 5}
	if high/low > 2000 {
		steps = steps[:1]
	}
	var ticks []plot.Tick
	for power := math.Floor(math.Log10(low)); power <= math.Log10(high); power++ {
		for _, step := range steps {
			if v := step * math.Pow(10, power); v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: formatTick(v)})
			}
		}
	}
	if len(ticks) < 2 {
		return evenTicks{4}.Ticks(low, high)
	}
	return ticks
}

func formatTick(v float64) string {
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// sampleWidth is the length of the piece of a line that stands before its name.
const sampleWidth = vg.Length(14)

func (l Line) stroke() draw.LineStyle {
	stroke := draw.LineStyle{Color: colour(l.Look.Colour), Width: vg.Points(1.6)}
	if l.Look.Hollow {
		stroke.Dashes = []vg.Length{vg.Points(4), vg.Points(2.5)}
	}
	return stroke
}

// Plot implements plot.Plotter.
func (l Line) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	stroke := l.stroke()
	way := make([]vg.Point, len(l.Points))
	for i, pt := range l.Points {
		way[i] = vg.Point{X: x(pt.X), Y: y(pt.Y)}
	}
	c.StrokeLines(stroke, way)
	dot := draw.GlyphStyle{Color: stroke.Color, Radius: vg.Points(2.4), Shape: draw.CircleGlyph{}}
	for _, at := range way {
		c.DrawGlyph(dot, at)
	}
}

// name is what stands right of the data, at a value, with a piece of its line.
type name struct {
	text   string
	value  float64
	stroke draw.LineStyle
}

// nameEnds makes room for names right of the data, and has them drawn there, apart from
// each other.
func (d *drawing) nameEnds(names []name) {
	const size = vg.Length(9)
	for _, n := range names {
		d.right = max(d.right, label(size, ink, true).Width(n.text)+sampleWidth+10)
	}
	names = slices.Clone(names)
	slices.SortStableFunc(names, func(a, b name) int { return cmp.Compare(a.value, b.value) })
	before := d.over
	d.over = func(c, data draw.Canvas) {
		if before != nil {
			before(c, data)
		}
		_, y := d.plot.Transforms(&data)
		places := make([]vg.Length, len(names))
		for i, n := range names { // upwards, then pushed down from the top
			places[i] = y(n.value) - size*0.4
			if i > 0 {
				places[i] = max(places[i], places[i-1]+size+1)
			}
		}
		ceiling := data.Max.Y
		for i := len(places) - 1; i >= 0; i-- {
			places[i] = min(places[i], ceiling-size)
			ceiling = places[i] - 1
		}
		for i, n := range names {
			left, middle := data.Max.X+6, places[i]+size*0.4
			data.StrokeLine2(n.stroke, left, middle, left+sampleWidth, middle)
			data.FillText(label(size, n.stroke.Color, true), vg.Point{X: left + sampleWidth + 3, Y: places[i]}, n.text)
		}
	}
}
