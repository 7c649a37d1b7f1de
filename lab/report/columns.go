package report

import (
	"errors"
	"fmt"
	"html/template"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/detour-collective/dcol/lab/report/stats"
)

// Column is one distribution of a ColumnChart.
type Column struct {
	Label  string
	Values []float64
	Look   Look
	// Reference is a value from elsewhere to compare with, if there is one.
	Reference *float64
}

// Look tells kinds of boxes and lines apart. Those of one colour belong
// together.
type Look struct {
	Colour int  // index into the palette, which repeats
	Hollow bool // box or bar: not filled; line: dashed
}

// ColumnChart is a box plot in the form of the 2017 evaluation: upright boxes
// side by side, from the first to the third quartile with a line at the median,
// whiskers to the furthest values within 1.5 interquartile ranges, circles
// beyond. A diamond is a column's reference. In a row above the plot stands each
// column's median, and below that its reference: beside a box a number could be
// taken for the diamond's.
type ColumnChart struct {
	Unit    string // of the values, with their quantity
	Columns []Column
	// Top is the end of the axis, so that several charts have the same; 0 leaves
	// it to the values.
	Top           float64
	ReferenceName string // what the diamonds are
}

// SVG is the chart as a part of a page. Columns without values keep their
// place.
func (c ColumnChart) SVG() (template.HTML, error) {
	p := newPlot("", c.Unit)
	p.Add(horizontalRules{})
	high, drawn, referred := c.Top, 0, false
	ticks := make([]plot.Tick, len(c.Columns))
	for i, column := range c.Columns {
		ticks[i] = plot.Tick{Value: float64(i), Label: column.Label}
		if column.Reference != nil {
			high = max(high, *column.Reference)
			referred = true
		}
		if len(column.Values) > 0 {
			drawn++
			high = max(high, stats.Summarize(column.Values).Max)
		}
		p.Add(upright{column, float64(i)})
	}
	if drawn == 0 {
		return "", errors.New("draw a box plot: there are no values to draw")
	}
	p.X.Min, p.X.Max = -0.5, float64(len(c.Columns))-0.5
	p.Y.Min, p.Y.Max = 0, high*1.06
	if p.Y.Max == 0 {
		p.Y.Max = 1
	}
	p.Y.Tick.Marker = evenTicks{6}
	room := (inlineWidth - 48) / vg.Length(len(c.Columns))
	nameColumns(p, ticks, room)
	ch := chart{plot: p, width: inlineWidth, height: 250, above: numberRow}
	if referred {
		ch.above += numberRow
		ch.subtitle = "bold: our median; \u25c7 " + c.ReferenceName
	}
	ch.over = func(_, data draw.Canvas) {
		x, _ := p.Transforms(&data)
		for i, column := range c.Columns {
			column.number(data, x(float64(i)), room, ch.above)
		}
	}
	return ch.inline()
}

// numberRow is the height of a row of numbers above a plot.
const numberRow = vg.Length(13)

// number writes a column's median into the first row above the data, and its
// reference into the second.
func (c Column) number(data draw.Canvas, middle, room, above vg.Length) {
	write := func(value string, bold bool, bottom, before vg.Length) {
		style := label(10, ink, bold)
		if style.Width(value)+before > room-2 {
			style.Font.Size = 8.4
		}
		left := middle - (style.Width(value)+before)/2
		data.FillText(style, vg.Point{X: left + before, Y: bottom}, value)
		if before > 0 {
			drawDiamond(data, vg.Point{X: left + before/2 - 1, Y: bottom + style.Font.Size*0.42}, 3)
		}
	}
	if len(c.Values) > 0 {
		write(formatMbps(stats.Summarize(c.Values).Median), true, data.Max.Y+above-numberRow+4, 0)
	}
	if c.Reference != nil {
		write(formatMbps(*c.Reference), false, data.Max.Y+4, 9)
	}
}

// nameColumns puts the names under the columns: broken at their first hyphen, and
// smaller where one is too wide, or else aslant.
func nameColumns(p *plot.Plot, ticks []plot.Tick, room vg.Length) {
	style := &p.X.Tick.Label
	for i, tick := range ticks {
		ticks[i].Label = strings.Replace(tick.Label, "-", "\n", 1)
	}
	fits := false
	for _, style.Font.Size = range []vg.Length{10, 8.4} {
		widest := vg.Length(0)
		for _, tick := range ticks {
			for line := range strings.Lines(tick.Label) {
				widest = max(widest, style.Width(strings.TrimSpace(line)))
			}
		}
		if fits = widest <= room; fits {
			break
		}
	}
	if !fits {
		for i, tick := range ticks {
			ticks[i].Label = strings.Replace(tick.Label, "\n", "-", 1)
		}
		style.Rotation = math.Pi / 5
		style.XAlign, style.YAlign = text.XRight, text.YTop
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.X.Tick.Length = 0
}

// upright is a column at its place.
type upright struct {
	Column
	at float64
}

// Plot implements plot.Plotter.
func (u upright) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	middle := x(u.at)
	half := min((x(1)-x(0))*0.3, 13)
	line := colour(u.Look.Colour)
	if len(u.Values) > 0 {
		s := stats.Summarize(u.Values)
		stroke := draw.LineStyle{Color: line, Width: vg.Points(1.1)}
		c.StrokeLine2(stroke, middle, y(s.WhiskerLow), middle, y(s.Q1))
		c.StrokeLine2(stroke, middle, y(s.Q3), middle, y(s.WhiskerHigh))
		for _, end := range []float64{s.WhiskerLow, s.WhiskerHigh} {
			c.StrokeLine2(stroke, middle-half/2, y(end), middle+half/2, y(end))
		}
		box := []vg.Point{
			{X: middle - half, Y: y(s.Q1)}, {X: middle + half, Y: y(s.Q1)},
			{X: middle + half, Y: y(s.Q3)}, {X: middle - half, Y: y(s.Q3)}, {X: middle - half, Y: y(s.Q1)},
		}
		if !u.Look.Hollow {
			c.FillPolygon(alpha(line, 0x60), box)
		}
		c.StrokeLines(stroke, box)
		c.StrokeLine2(draw.LineStyle{Color: line, Width: vg.Points(2.2)}, middle-half, y(s.Median), middle+half, y(s.Median))
		circle := draw.GlyphStyle{Color: line, Radius: vg.Points(2), Shape: draw.RingGlyph{}}
		for _, o := range s.Outliers {
			c.DrawGlyph(circle, vg.Point{X: middle, Y: y(o)})
		}
	}
	if u.Reference != nil {
		drawDiamond(c, vg.Point{X: middle, Y: y(*u.Reference)}, 4)
	}
}

func drawDiamond(c draw.Canvas, at vg.Point, r vg.Length) {
	c.StrokeLines(draw.LineStyle{Color: ink, Width: vg.Points(1.1)}, []vg.Point{
		{X: at.X - r, Y: at.Y}, {X: at.X, Y: at.Y + r}, {X: at.X + r, Y: at.Y}, {X: at.X, Y: at.Y - r}, {X: at.X - r, Y: at.Y},
	})
}

// formatShort has three significant digits, without an exponent.
func formatShort(v float64) string {
	switch size := abs(v); {
	case size >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case size >= 9.995:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
