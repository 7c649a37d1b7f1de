// Package svgchart draws charts as SVG for HTML pages that need nothing else. It is pure.
package svgchart

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

// Colour returns the colour of the i-th series.
func Colour(i int) string { return colours[i%len(colours)] }

// Axis converts values to positions.
type Axis struct {
	From, To float64
	Log      bool
	Label    string
	Format   func(float64) string
}

// share returns where a value is between the ends, 0 to 1.
func (a Axis) share(v float64) float64 {
	if a.Log {
		return (math.Log10(max(v, a.From)) - math.Log10(a.From)) / (math.Log10(a.To) - math.Log10(a.From))
	}
	return (v - a.From) / (a.To - a.From)
}

// LogAxis covers whole decades.
func LogAxis(least, most float64, label string, format func(float64) string) Axis {
	least = max(least, most/1e9)
	from, to := math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most)))
	if from == to {
		to *= 10
	}
	return Axis{from, to, true, label, format}
}

// LinearAxis begins at 0 and ends at a tick.
func LinearAxis(most float64, label string, format func(float64) string) Axis {
	if most <= 0 {
		most = 1
	}
	step := NiceStep(most / 5)
	return Axis{0, math.Ceil(most/step-1e-9) * step, false, label, format}
}

// ShareAxis covers 0 to 1, in percent.
func ShareAxis(label string) Axis { return Axis{0, 1, false, label, Percent} }

// NiceStep returns the next of 1, 2, 5, 10, … that is not smaller.
func NiceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if factor*power >= v*(1-1e-9) {
			return factor * power
		}
	}
	return 10 * power
}

// Ticks returns the values to mark.
func (a Axis) Ticks() (list []float64) {
	if !a.Log {
		step := NiceStep((a.To - a.From) / 5.5)
		for i := 0; ; i++ {
			v := a.From + float64(i)*step
			if v > a.To+step/1000 {
				return list
			}
			list = append(list, v)
		}
	}
	decades := int(math.Round(math.Log10(a.To / a.From)))
	every := (decades + 7) / 8
	for i := 0; i <= decades; i += every {
		list = append(list, a.From*math.Pow(10, float64(i)))
	}
	return list
}

// Chart draws into SVG.
type Chart struct {
	X, Y Axis
	// Body takes SVG that is drawn over the grid.
	Body strings.Builder
	b    strings.Builder
}

// New returns an empty chart with two axes.
func New(x, y Axis) *Chart { return &Chart{X: x, Y: y} }

// PX returns the position of a value on the x axis, in pixels.
func (c *Chart) PX(v float64) float64 {
	return marginLeft + (chartWidth-marginLeft-marginRight)*min(1, max(0, c.X.share(v)))
}

// PY returns the position of a value on the y axis, in pixels.
func (c *Chart) PY(v float64) float64 {
	return chartHeight - marginEnd - (chartHeight-marginTop-marginEnd)*min(1, max(0, c.Y.share(v)))
}

// Line draws a line through points, as steps or straight.
func (c *Chart) Line(points [][2]float64, stroke string, steps bool) {
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(&c.Body, `<path fill="none" stroke="%s" stroke-width="2" d="M%.1f %.1f`, stroke, c.PX(points[0][0]), c.PY(points[0][1]))
	for _, p := range points[1:] {
		if steps {
			fmt.Fprintf(&c.Body, "H%.1fV%.1f", c.PX(p[0]), c.PY(p[1]))
		} else {
			fmt.Fprintf(&c.Body, "L%.1f %.1f", c.PX(p[0]), c.PY(p[1]))
		}
	}
	c.Body.WriteString(`"/>`)
}

// Bars draws a bar for each part of the x axis.
func (c *Chart) Bars(values []float64, fill string) {
	width := (c.X.To - c.X.From) / float64(len(values))
	for i, v := range values {
		if v <= 0 {
			continue
		}
		from := c.X.From + float64(i)*width
		fmt.Fprintf(&c.Body, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`,
			c.PX(from)+0.5, c.PY(v), max(0.5, c.PX(from+width)-c.PX(from)-1), c.PY(0)-c.PY(v), fill)
	}
}

// SVG returns the whole chart. title describes it to screen readers.
func (c *Chart) SVG(title string) template.HTML {
	fmt.Fprintf(&c.b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, chartWidth, chartHeight, template.HTMLEscapeString(title))
	for _, v := range c.Y.Ticks() {
		y := c.PY(v)
		fmt.Fprintf(&c.b, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			marginLeft, y, chartWidth-marginRight, marginLeft-8, y+4, template.HTMLEscapeString(c.Y.Format(v)))
	}
	for _, v := range c.X.Ticks() {
		x := c.PX(v)
		fmt.Fprintf(&c.b, `<path class="grid" d="M%.1f %dV%d"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`,
			x, marginTop, chartHeight-marginEnd, x, chartHeight-marginEnd+18, template.HTMLEscapeString(c.X.Format(v)))
	}
	fmt.Fprintf(&c.b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`, (marginLeft+chartWidth-marginRight)/2, chartHeight-8, template.HTMLEscapeString(c.X.Label))
	if c.Y.Label != "" {
		middle := (marginTop + chartHeight - marginEnd) / 2
		fmt.Fprintf(&c.b, `<text x="14" y="%d" text-anchor="middle" transform="rotate(-90 14 %d)">%s</text>`, middle, middle, template.HTMLEscapeString(c.Y.Label))
	}
	c.b.WriteString(c.Body.String())
	c.b.WriteString("</svg>")
	return template.HTML(c.b.String()) //nolint:gosec // the texts in it are escaped
}

// Percent formats a share, 0 to 1.
func Percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
