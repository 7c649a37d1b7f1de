package chart

import (
	"errors"
	"html/template"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Heat is a table of ratios in colours: blue above 1, red below, white at 1, with the ratio in each cell.
// Rows go upwards. Their title is above the table.
type Heat struct {
	XTitle, YTitle   string
	XLabels, YLabels []string
	Ratios           [][]float64 // by row, then column; NaN for no value
}

// SVG returns the chart as a part of a page.
func (h Heat) SVG() (template.HTML, error) {
	furthest := 0.0
	for _, row := range h.Ratios {
		for _, ratio := range row {
			if ratio > 0 {
				furthest = max(furthest, math.Abs(math.Log(ratio)))
			}
		}
	}
	if len(h.XLabels) == 0 || len(h.Ratios) != len(h.YLabels) || len(h.Ratios) == 0 {
		return "", errors.New("draw a heat map: there are no cells to draw")
	}
	p := newPlot(h.XTitle, "") // beside so few rows a long title would not end
	p.Add(cells{h.Ratios, max(furthest, math.Log(1.25))})
	p.X.Min, p.X.Max = -0.5, float64(len(h.XLabels))-0.5
	p.Y.Min, p.Y.Max = -0.5, float64(len(h.YLabels))-0.5
	p.X.Tick.Marker, p.Y.Tick.Marker = namedTicks(h.XLabels), namedTicks(h.YLabels)
	p.X.Tick.Length, p.X.LineStyle.Width = 0, 0
	height := 62 + min(34*vg.Length(len(h.YLabels)), inlineWidth)
	return drawing{subtitle: h.YTitle, plot: p, width: inlineWidth, height: height}.inline()
}

func namedTicks(names []string) plot.ConstantTicks {
	ticks := make(plot.ConstantTicks, len(names))
	for i, name := range names {
		ticks[i] = plot.Tick{Value: float64(i), Label: name}
	}
	return ticks
}

// cells are the cells of a heat map; furthest is the logarithm of the ratio
// that has the full colour.
type cells struct {
	ratios   [][]float64
	furthest float64
}

// Plot implements plot.Plotter.
func (h cells) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := label(10, ink, false)
	for i, row := range h.ratios {
		for j, ratio := range row {
			left, right := x(float64(j)-0.5)+1, x(float64(j)+0.5)-1
			low, high := y(float64(i)-0.5)+1, y(float64(i)+0.5)-1
			words := "–"
			fill := rule
			if ratio > 0 {
				words, fill = number(ratio), h.tint(ratio)
			}
			c.FillPolygon(fill, []vg.Point{{X: left, Y: low}, {X: right, Y: low}, {X: right, Y: high}, {X: left, Y: high}})
			at := vg.Point{X: (left + right - style.Width(words)) / 2, Y: (low+high)/2 - style.Font.Size*0.4}
			c.FillText(style, at, words)
		}
	}
}

// tint mixes white with the colour for the ratio, light enough for black text.
func (h cells) tint(ratio float64) color.NRGBA {
	full := colour(4) // sky
	if ratio < 1 {
		full = colour(5) // vermilion
	}
	share := min(math.Abs(math.Log(ratio))/h.furthest, 1) * 0.9
	mix := func(v uint8) uint8 { return uint8(255 - share*(255-float64(v))) }
	return color.NRGBA{mix(full.R), mix(full.G), mix(full.B), 0xFF}
}
