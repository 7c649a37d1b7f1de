package report

import (
	"fmt"
	"html/template"

	"github.com/detour-collective/dcol/internal/svgchart"
)

// figure is a chart of the page.
type figure struct {
	Title  string
	Note   string
	SVG    template.HTML
	Legend []legend
}

type legend struct{ Colour, Text string }

// distribution draws the share of values up to each value.
func distribution(title, label string, format func(float64) string, h *Histogram) *figure {
	points := h.Points()
	if len(points) == 0 || h.max <= 0 {
		return nil
	}
	least := h.max
	for _, p := range points {
		if p.Value > 0 {
			least = p.Value
			break
		}
	}
	x := svgchart.LogAxis(least, h.max, label, format)
	c := svgchart.New(x, svgchart.ShareAxis("share"))
	line := [][2]float64{{x.From, 0}}
	for _, p := range points {
		line = append(line, [2]float64{max(p.Value, x.From), p.Share})
	}
	line = append(line, [2]float64{x.To, 1})
	c.Line(line, svgchart.Colour(0), true)
	return &figure{Title: title, Note: fmt.Sprintf("%s values; median %s", number(h.n), format(h.Quantile(0.5))), SVG: c.SVG(title)}
}

// histogram draws counts of equal parts of 0 to 1.
func histogram(title, label string, counts []uint64) *figure {
	var sum, most float64
	values := make([]float64, len(counts))
	for i, n := range counts {
		values[i] = float64(n)
		sum += values[i]
		most = max(most, values[i])
	}
	if sum == 0 {
		return nil
	}
	for i := range values {
		values[i] /= sum
	}
	c := svgchart.New(svgchart.ShareAxis(label), svgchart.LinearAxis(most/sum, "share", svgchart.Percent))
	c.Bars(values, svgchart.Colour(0))
	return &figure{Title: title, Note: number(uint64(sum)) + " values", SVG: c.SVG(title)}
}
