package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/probe"
	"github.com/detour-collective/dcol/internal/svgchart"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"clock": clock, "times": times, "plainReasons": func() string { return plainReasons }, "short": short, "colour": svgchart.Colour,
	"paths": func(s Series) string { return s.paths() },
	"span":  func(g probe.Gap) string { return g.To.Sub(g.From).Round(time.Second).String() },
}).Parse(pageText))

// page holds the values of the page's template.
type page struct {
	*Summary
	Groups []group
}

// group holds the series of one server and shape, with their plots.
type group struct {
	Series         []Series
	ECDF, Timeline template.HTML
}

// WritePage writes a self-contained HTML page.
func (s *Summary) WritePage(w io.Writer) error {
	p := page{Summary: s}
	for _, series := range s.groups() {
		p.Groups = append(p.Groups, group{series, ecdf(series), s.timeline(series)})
	}
	return pageTemplate.Execute(w, p)
}

// ecdf plots, for each value, the share of values up to it, with one line for each way.
func ecdf(series []Series) template.HTML {
	least, most := extent(series)
	if most <= 0 {
		return ""
	}
	c := svgchart.New(svgchart.LogAxis(least, most, series[0].Measure+", "+series[0].Unit, short), svgchart.ShareAxis("share"))
	for i, one := range series {
		points := [][2]float64{{c.X.From, 0}}
		n := len(one.values)
		every := max(1, n/1000)
		for j := 0; j < n; j += every {
			points = append(points, [2]float64{max(one.values[j], c.X.From), float64(j+1) / float64(n)})
		}
		if n > 0 {
			points = append(points, [2]float64{max(one.values[n-1], c.X.From), 1}, [2]float64{c.X.To, 1})
			c.Line(points, svgchart.Colour(i), true)
		}
	}
	return c.SVG("distribution of the " + series[0].Measure)
}

// extent returns the least value greater than 0 and the greatest value.
func extent(series []Series) (least, most float64) {
	least = math.Inf(1)
	for _, one := range series {
		for _, v := range one.values {
			if v > 0 {
				least = min(least, v)
			}
			most = max(most, v)
		}
	}
	return least, most
}

// timeline plots the median of each exchange over time, with gaps in grey.
func (s *Summary) timeline(series []Series) template.HTML {
	least, most := extent(series)
	length := s.To.Sub(*s.From)
	if most <= 0 || length <= 0 {
		return ""
	}
	format := func(hours float64) string {
		at := s.From.Add(time.Duration(hours * float64(time.Hour))).UTC()
		if length > 48*time.Hour {
			return at.Format("2 Jan")
		}
		return at.Format("15:04")
	}
	x := svgchart.Axis{From: 0, To: length.Hours(), Label: "time, UTC", Format: format}
	c := svgchart.New(x, svgchart.LogAxis(least, most, series[0].Unit, short))
	for _, gap := range s.Gaps {
		from, to := c.PX(gap.From.Sub(*s.From).Hours()), c.PX(gap.To.Sub(*s.From).Hours())
		top, bottom := c.PY(c.Y.To), c.PY(c.Y.From)
		fmt.Fprintf(&c.Body, `<rect class="gap" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, from, top, max(0.5, to-from), bottom-top)
	}
	for i, one := range series {
		var marks strings.Builder
		for _, r := range s.records {
			if r.Server != one.Server || r.Shape != one.Shape || r.Way != one.Way {
				continue
			}
			at := c.PX(r.Time.Sub(*s.From).Hours())
			if r.Error != "" {
				y := c.PY(c.Y.To)
				fmt.Fprintf(&marks, `<path d="M%.1f %.1fl6 6m0 -6l-6 6" stroke="%s"/>`, at-3, y-3, svgchart.Colour(i))
				continue
			}
			fmt.Fprintf(&marks, `<circle cx="%.1f" cy="%.1f" r="2.2" fill="%s"/>`, at, c.PY(median(r.Values)), svgchart.Colour(i))
		}
		c.Body.WriteString(marks.String())
	}
	return c.SVG(series[0].Measure + " over time")
}
