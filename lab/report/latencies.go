package report

import (
	"errors"
	"fmt"
	"html/template"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// LatencyBar is a procedure's latency in a LatencyChart.
type LatencyBar struct {
	Label   string
	Latency Latency
	Look    Look
}

// LatencyChart is a plot of latencies side by side, one lying bar each: it begins at
// the median and has steps at the 90th, 95th and 99th percentile, and a ring is the
// longest. The axis is logarithmic, as stalls are many times the usual.
type LatencyChart struct {
	Title, Subtitle string
	Bars            []LatencyBar
	// From and To are the ends of the axis in ms, so that several charts have the
	// same; 0 leaves them to the bars.
	From, To float64
}

// Latencies draws the chart to base.svg and base.png.
func Latencies(l LatencyChart, base string) error {
	ch, err := l.chart(chartWidth)
	if err != nil {
		return fmt.Errorf("draw %s: %w", base, err)
	}
	return ch.save(base)
}

// SVG is the chart as a part of a page, without headings.
func (l LatencyChart) SVG() (template.HTML, error) {
	l.Title, l.Subtitle = "", ""
	ch, err := l.chart(inlineWidth)
	if err != nil {
		return "", fmt.Errorf("draw latencies: %w", err)
	}
	return ch.inline()
}

func (l LatencyChart) chart(width vg.Length) (chart, error) {
	if len(l.Bars) == 0 {
		return chart{}, errors.New("there are no latencies to draw")
	}
	p := newPlot("latency, ms", "")
	p.Add(verticalRules{})
	var ends []float64
	names := make(plot.ConstantTicks, len(l.Bars))
	at := func(i int) float64 { return float64(len(l.Bars) - 1 - i) }
	for i, bar := range l.Bars {
		p.Add(latencyBar{bar, at(i)})
		ends = append(ends, bar.Latency.P50MS, bar.Latency.MaxMS)
		names[i] = plot.Tick{Value: at(i), Label: bar.Label}
	}
	if l.From > 0 && l.To > 0 {
		ends = append(ends, l.From, l.To)
	}
	var err error
	if p.X.Min, p.X.Max, p.X.Scale, err = scale(ends, true); err != nil {
		return chart{}, err
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = decades{}, names
	p.Y.Min, p.Y.Max = -0.6, float64(len(l.Bars))-0.1 // with room for the headings of the numbers
	ch := chart{title: l.Title, subtitle: l.Subtitle, plot: p, width: width, right: 84}
	ch.height = vg.Length(len(l.Bars))*30 + 120
	if width == inlineWidth {
		ch.height = vg.Length(len(l.Bars))*26 + 72
	}
	ch.over = func(_, data draw.Canvas) {
		_, y := p.Transforms(&data)
		number, heading := label(10, ink, true), label(9.5, faint, false)
		for c, column := range []struct {
			name string
			of   func(Latency) float64
		}{
			{"median", func(l Latency) float64 { return l.P50MS }},
			{"99 %", func(l Latency) float64 { return l.P99MS }},
		} {
			left := data.Max.X + 8 + vg.Length(c)*42
			data.FillText(heading, vg.Point{X: left, Y: data.Max.Y - heading.Font.Size}, column.name)
			for i, bar := range l.Bars {
				data.FillText(number, vg.Point{X: left, Y: y(at(i)) - number.Font.Size*0.4}, formatLatency(column.of(bar.Latency)))
			}
		}
	}
	return ch, nil
}

// latencyBar is one bar, lying so that its name can be read.
type latencyBar struct {
	LatencyBar
	at float64
}

// Plot implements plot.Plotter.
func (b latencyBar) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	l, middle, line := b.Latency, y(b.at), colour(b.Look.Colour)
	c.StrokeLine2(thin(line), x(l.P99MS), middle, x(l.MaxMS), middle)
	for _, step := range []struct {
		from, to float64
		half     vg.Length
		opacity  uint8
	}{
		{l.P50MS, l.P90MS, 9, 0xB0}, {l.P90MS, l.P95MS, 6.5, 0x80}, {l.P95MS, l.P99MS, 4, 0x50},
	} {
		corners := []vg.Point{
			{X: x(step.from), Y: middle - step.half}, {X: x(step.to), Y: middle - step.half},
			{X: x(step.to), Y: middle + step.half}, {X: x(step.from), Y: middle + step.half},
		}
		if b.Look.Hollow {
			c.StrokeLines(thin(line), append(corners, corners[0]))
			continue
		}
		c.FillPolygon(alpha(line, step.opacity), corners)
	}
	c.StrokeLine2(draw.LineStyle{Color: line, Width: vg.Points(2.6)}, x(l.P50MS), middle-9, x(l.P50MS), middle+9)
	c.DrawGlyph(draw.GlyphStyle{Color: line, Radius: vg.Points(2.6), Shape: draw.RingGlyph{}}, vg.Point{X: x(l.MaxMS), Y: middle})
}

// formatLatency is a time in ms with three figures or more.
func formatLatency(ms float64) string {
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f", ms)
	default:
		return fmt.Sprintf("%.2f", ms)
	}
}
