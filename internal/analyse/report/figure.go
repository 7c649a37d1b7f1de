package report

import (
	"fmt"
	"html/template"
	"math"

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

// distribution draws the share of values up to each value, if there are several.
func distribution(title, label string, format func(float64) string, h *Histogram) *figure {
	if h.n < 2 {
		return nil // the summary has it
	}
	f := distributions(title, label, format, []*Histogram{h}, nil)
	if f != nil {
		f.Note = fmt.Sprintf("%s; median %s", plural(h.n, "value"), format(h.Quantile(0.5)))
	}
	return f
}

// distributions draws those of several histograms, with their names. Without positive values there is nothing to draw.
func distributions(title, label string, format func(float64) string, list []*Histogram, names []string) *figure {
	least, most := math.Inf(1), 0.0
	for _, h := range list {
		for _, p := range h.Points() {
			if p.Value > 0 {
				least, most = min(least, p.Value), max(most, h.max)
				break
			}
		}
	}
	if most == 0 {
		return nil
	}
	x := svgchart.LogAxis(least, most, label, format)
	c := svgchart.New(x, svgchart.ShareAxis("share"))
	f := &figure{Title: title}
	for i, h := range list {
		if h.n == 0 {
			continue
		}
		line := [][2]float64{{x.From, 0}}
		for _, p := range h.Points() {
			line = append(line, [2]float64{max(p.Value, x.From), p.Share})
		}
		c.Line(append(line, [2]float64{x.To, 1}), svgchart.Colour(i), true)
		if names != nil {
			f.Legend = append(f.Legend, legend{svgchart.Colour(i), fmt.Sprintf("%s: %s, median %s", names[i], plural(h.n, "value"), format(h.Quantile(0.5)))})
		}
	}
	f.SVG = c.SVG(title)
	return f
}

// joinFigure draws the delays of all joins, and of the first of each connection.
func (t *Totals) joinFigure() *figure {
	if t.Joins.n < 2 {
		return nil // the summary has it
	}
	return distributions("Joins: time since the connection's begin", "delay", span, []*Histogram{&t.Joins, &t.FirstJoins}, []string{"all", "the first of each connection"})
}

// secondBestFigure draws the round trips of second-best subflows, by those of the best.
func (t *Totals) secondBestFigure() *figure {
	list, names := make([]*Histogram, len(t.SecondBest)), make([]string, len(t.SecondBest))
	for i := range t.SecondBest {
		list[i], names[i] = &t.SecondBest[i], "best "+secondBestClasses[i]
	}
	return distributions("Second-best round trips, by the best of the connection", "round trip, connections of 100 kB and more", span, list, names)
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
	return &figure{Title: title, Note: plural(uint64(sum), "value"), SVG: c.SVG(title)}
}
