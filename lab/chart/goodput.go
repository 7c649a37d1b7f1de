package chart

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/detour-collective/dcol/lab/stats"
)

// Path is one path's goodput over time, in Mbit/s, averaged over each step.
type Path struct {
	Path string    `json:"path"` // its name
	Mbps []float64 `json:"mbps"`
}

// Mark is a moment to point out, such as the death of a waypoint.
type Mark struct {
	Seconds float64 `json:"seconds"`
	Label   string  `json:"label"`
}

// Level is a value to compare with.
type Level struct {
	Value float64
	Label string
}

// Goodput is a plot of goodput over time, the paths stacked.
type Goodput struct {
	Title, Subtitle string // of a file; a page has its own
	StepSeconds     float64
	Paths           []Path
	// Among lists all paths of the network. Paths may have some of them. A path has the colour of its
	// position in Among, in every plot of the same network.
	Among []string
	// Top is the end of the axis, so that several charts have the same; 0 leaves it
	// to the paths.
	Top    float64
	Marks  []Mark
	Levels []Level
}

// Save draws the chart to base.svg and base.png.
func (g Goodput) Save(base string) error {
	d, err := g.drawing(chartWidth)
	if err != nil {
		return fmt.Errorf("draw %s: %w", base, err)
	}
	return d.save(base)
}

// SVG returns the chart as a part of a page, without headings.
func (g Goodput) SVG() (template.HTML, error) {
	g.Title, g.Subtitle = "", ""
	d, err := g.drawing(inlineWidth)
	if err != nil {
		return "", fmt.Errorf("draw goodput over time: %w", err)
	}
	return d.inline()
}

func (g Goodput) drawing(width vg.Length) (drawing, error) {
	if g.StepSeconds <= 0 || len(g.Paths) == 0 {
		return drawing{}, errors.New("there is no series to draw")
	}
	bands := g.stack()
	p := newPlot("time, s", "goodput, Mbit/s")
	p.Add(rules{})
	for _, b := range bands {
		p.Add(b)
	}
	top := max(g.Top, bands[len(bands)-1].highest())
	for _, l := range g.Levels {
		top = max(top, l.Value)
	}
	p.X.Min, p.X.Max = 0, bands[0].end()
	p.Y.Min, p.Y.Max = 0, top*1.12
	if p.Y.Max == 0 {
		p.Y.Max = 1
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = evenTicks{8}, evenTicks{5}
	d := drawing{title: g.Title, subtitle: g.Subtitle, plot: p, width: width}
	d.height = chartHeight * width / chartWidth
	d.over = func(_, data draw.Canvas) {
		x, y := p.Transforms(&data)
		drawLevels(data, y, g.Levels)
		drawMarks(data, x, g.Marks)
	}
	names := make([]name, len(bands))
	for i, b := range bands {
		names[i] = name{text: b.path, value: b.middle(), stroke: draw.LineStyle{Color: colour(b.index), Width: vg.Points(6)}}
	}
	d.nameEnds(names)
	return d, nil
}

// band is one path's part of a stack: it lies between low and high.
type band struct {
	path      string
	index     int
	step      float64
	low, high []float64
}

// Highest returns the highest goodput of all paths together.
func (g Goodput) Highest() float64 {
	bands := g.stack()
	if len(bands) == 0 {
		return 0
	}
	return bands[len(bands)-1].highest()
}

// stack lays the paths on each other; their indices are the places among all paths.
func (g Goodput) stack() []band {
	n := 0
	for _, p := range g.Paths {
		n = max(n, len(p.Mbps))
	}
	base := make([]float64, n)
	bands := make([]band, len(g.Paths))
	for i, p := range g.Paths {
		index := slices.Index(g.Among, p.Path)
		if index < 0 {
			index = i
		}
		b := band{path: p.Path, index: index, step: g.StepSeconds, low: slices.Clone(base), high: slices.Clone(base)}
		for j, v := range p.Mbps {
			b.high[j] += v
		}
		copy(base, b.high)
		bands[i] = b
	}
	return bands
}

func (b band) highest() float64 {
	if len(b.high) == 0 {
		return 0
	}
	return slices.Max(b.high)
}

func (b band) end() float64 { return max(float64(len(b.high)), 1) * b.step }

// Plot implements plot.Plotter. Every value is an average over its interval, so it is drawn as a horizontal
// line. Where the path carried nothing there is no band.
func (b band) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	var upper, lower []vg.Point
	flush := func() {
		if len(upper) == 0 {
			return
		}
		slices.Reverse(lower)
		fill := colour(b.index)
		c.FillPolygon(alpha(fill, 0xA8), append(slices.Clone(upper), lower...))
		c.StrokeLines(draw.LineStyle{Color: fill, Width: vg.Points(1.1)}, upper)
		upper, lower = nil, nil
	}
	for i := range b.high {
		if b.high[i] == b.low[i] {
			flush()
			continue
		}
		from, to := x(float64(i)*b.step), x(float64(i+1)*b.step)
		upper = append(upper, vg.Point{X: from, Y: y(b.high[i])}, vg.Point{X: to, Y: y(b.high[i])})
		lower = append(lower, vg.Point{X: from, Y: y(b.low[i])}, vg.Point{X: to, Y: y(b.low[i])})
	}
	flush()
}

// middle returns the middle of the band, on average.
func (b band) middle() float64 {
	if len(b.high) == 0 {
		return 0
	}
	return (stats.Mean(b.low) + stats.Mean(b.high)) / 2
}

func drawLevels(data draw.Canvas, y func(float64) vg.Length, levels []Level) {
	style := label(9.5, ink, false)
	for _, l := range levels {
		at := y(l.Value)
		data.StrokeLine2(thin(ink, vg.Points(4), vg.Points(3)), data.Min.X, at, data.Max.X, at)
		text := vg.Point{X: data.Max.X - style.Width(l.Label) - 4, Y: at + 3}
		pale(data, text, style.Width(l.Label), style.Font.Size)
		data.FillText(style, text, l.Label)
	}
}

// pale makes what is behind a label pale, because curves and lines of the grid would cross the text.
func pale(data draw.Canvas, at vg.Point, width, height vg.Length) {
	left, right, low, high := at.X-2, at.X+width+2, at.Y-1, at.Y+height+1
	data.FillPolygon(color.NRGBA{R: 255, G: 255, B: 255, A: 0xD8}, []vg.Point{{X: left, Y: low}, {X: right, Y: low}, {X: right, Y: high}, {X: left, Y: high}})
}

func drawMarks(data draw.Canvas, x func(float64) vg.Length, marks []Mark) {
	style := label(9.5, ink, false)
	for _, m := range marks {
		at := x(m.Seconds)
		data.StrokeLine2(thin(ink, vg.Points(1.5), vg.Points(2)), at, data.Min.Y, at, data.Max.Y)
		text := vg.Point{X: min(at+4, data.Max.X-style.Width(m.Label)), Y: data.Max.Y - style.Font.Size}
		pale(data, text, style.Width(m.Label), style.Font.Size)
		data.FillText(style, text, m.Label)
	}
}

// patchWidth is the width of the coloured patch before a name.
const patchWidth = vg.Length(14)

// name is a label right of the data, at the height of a value, with a patch of its colour.
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
		d.right = max(d.right, label(size, ink, true).Width(n.text)+patchWidth+10)
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
			data.StrokeLine2(n.stroke, left, middle, left+patchWidth, middle)
			data.FillText(label(size, n.stroke.Color, true), vg.Point{X: left + patchWidth + 3, Y: places[i]}, n.text)
		}
	}
}
