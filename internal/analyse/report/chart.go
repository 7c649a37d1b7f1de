package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// Size of a chart and its margins, in pixels.
const (
	chartWidth, chartHeight                       = 620, 300
	marginLeft, marginRight, marginTop, marginEnd = 78, 42, 14, 52
)

// colours can be told apart by colour-blind people, too (Okabe and Ito 2008).
var colours = []string{"#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b8a800", "#7a7a7a"}

func colour(i int) string { return colours[i%len(colours)] }

// axis converts values to positions.
type axis struct {
	from, to float64
	log      bool
	label    string
	format   func(float64) string
}

// share returns where a value is between the ends, 0 to 1.
func (a axis) share(v float64) float64 {
	if a.log {
		return (math.Log10(max(v, a.from)) - math.Log10(a.from)) / (math.Log10(a.to) - math.Log10(a.from))
	}
	return (v - a.from) / (a.to - a.from)
}

// logAxis covers whole decades.
func logAxis(least, most float64, label string, format func(float64) string) axis {
	least = max(least, most/1e9)
	from, to := math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most)))
	if from == to {
		to *= 10
	}
	return axis{from, to, true, label, format}
}

// linearAxis begins at 0 and ends at a tick.
func linearAxis(most float64, label string, format func(float64) string) axis {
	if most <= 0 {
		most = 1
	}
	step := niceStep(most / 5)
	return axis{0, math.Ceil(most/step-1e-9) * step, false, label, format}
}

// niceStep returns the next of 1, 2, 5, 10, … that is not smaller.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if factor*power >= v*(1-1e-9) {
			return factor * power
		}
	}
	return 10 * power
}

func (a axis) ticks() (list []float64) {
	if !a.log {
		step := niceStep((a.to - a.from) / 5.5)
		for i := 0; ; i++ {
			v := a.from + float64(i)*step
			if v > a.to+step/1000 {
				return list
			}
			list = append(list, v)
		}
	}
	decades := int(math.Round(math.Log10(a.to / a.from)))
	every := (decades + 7) / 8
	for i := 0; i <= decades; i += every {
		list = append(list, a.from*math.Pow(10, float64(i)))
	}
	return list
}

// chart draws into SVG.
type chart struct {
	x, y axis
	body strings.Builder
	b    strings.Builder
}

func newChart(x, y axis) *chart { return &chart{x: x, y: y} }

func (c *chart) px(v float64) float64 {
	return marginLeft + (chartWidth-marginLeft-marginRight)*min(1, max(0, c.x.share(v)))
}

func (c *chart) py(v float64) float64 {
	return chartHeight - marginEnd - (chartHeight-marginTop-marginEnd)*min(1, max(0, c.y.share(v)))
}

// line draws a line through points, as steps or straight.
func (c *chart) line(points [][2]float64, stroke string, steps bool) {
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(&c.body, `<path fill="none" stroke="%s" stroke-width="2" d="M%.1f %.1f`, stroke, c.px(points[0][0]), c.py(points[0][1]))
	for _, p := range points[1:] {
		if steps {
			fmt.Fprintf(&c.body, "H%.1fV%.1f", c.px(p[0]), c.py(p[1]))
		} else {
			fmt.Fprintf(&c.body, "L%.1f %.1f", c.px(p[0]), c.py(p[1]))
		}
	}
	c.body.WriteString(`"/>`)
}

// bars draws a bar for each part of the x axis.
func (c *chart) bars(values []float64, fill string) {
	width := (c.x.to - c.x.from) / float64(len(values))
	for i, v := range values {
		if v <= 0 {
			continue
		}
		from := c.x.from + float64(i)*width
		fmt.Fprintf(&c.body, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`,
			c.px(from)+0.5, c.py(v), max(0.5, c.px(from+width)-c.px(from)-1), c.py(0)-c.py(v), fill)
	}
}

// svg returns the whole chart. title describes it to screen readers.
func (c *chart) svg(title string) template.HTML {
	fmt.Fprintf(&c.b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, chartWidth, chartHeight, template.HTMLEscapeString(title))
	for _, v := range c.y.ticks() {
		y := c.py(v)
		fmt.Fprintf(&c.b, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			marginLeft, y, chartWidth-marginRight, marginLeft-8, y+4, template.HTMLEscapeString(c.y.format(v)))
	}
	for _, v := range c.x.ticks() {
		x := c.px(v)
		fmt.Fprintf(&c.b, `<path class="grid" d="M%.1f %dV%d"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`,
			x, marginTop, chartHeight-marginEnd, x, chartHeight-marginEnd+18, template.HTMLEscapeString(c.x.format(v)))
	}
	fmt.Fprintf(&c.b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`, (marginLeft+chartWidth-marginRight)/2, chartHeight-8, template.HTMLEscapeString(c.x.label))
	if c.y.label != "" {
		middle := (marginTop + chartHeight - marginEnd) / 2
		fmt.Fprintf(&c.b, `<text x="14" y="%d" text-anchor="middle" transform="rotate(-90 14 %d)">%s</text>`, middle, middle, template.HTMLEscapeString(c.y.label))
	}
	c.b.WriteString(c.body.String())
	c.b.WriteString("</svg>")
	return template.HTML(c.b.String()) //nolint:gosec // the texts in it are escaped
}

func percentOf(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

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
	x := logAxis(least, h.max, label, format)
	c := newChart(x, axis{0, 1, false, "share", percentOf})
	line := [][2]float64{{x.from, 0}}
	for _, p := range points {
		line = append(line, [2]float64{max(p.Value, x.from), p.Share})
	}
	line = append(line, [2]float64{x.to, 1})
	c.line(line, colours[0], true)
	return &figure{Title: title, Note: fmt.Sprintf("%s values; median %s", number(h.n), format(h.Quantile(0.5))), SVG: c.svg(title)}
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
	c := newChart(axis{0, 1, false, label, percentOf}, linearAxis(most/sum, "share", percentOf))
	c.bars(values, colours[0])
	return &figure{Title: title, Note: number(uint64(sum)) + " values", SVG: c.svg(title)}
}

// figure is a chart of the page.
type figure struct {
	Title  string
	Note   string
	SVG    template.HTML
	Legend []legend
}

type legend struct{ Colour, Text string }
