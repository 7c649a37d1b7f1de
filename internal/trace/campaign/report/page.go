package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/detour-collective/dcol/internal/printable"
	"github.com/detour-collective/dcol/internal/svgchart"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"percent": svgchart.Percent, "join": strings.Join, "colour": svgchart.Colour,
	"near":   func(c Change) string { return svgchart.Percent(c.Between(0, nearEnd)) },
	"core":   func(c Change) string { return svgchart.Percent(c.Between(nearEnd, coreEnd)) },
	"far":    func(c Change) string { return svgchart.Percent(c.Between(coreEnd, tenths)) },
	"within": func(c Change) string { return svgchart.Percent(c.ErrorUpTo(4)) },
}).Parse(pageText))

// page holds the values of the page's template.
type page struct {
	*Summary
	Reasons        []string
	Quotes, Where  template.HTML // routers that quote everything
	Places, Errors template.HTML
	Drawn          []Change
	Placed, Share  regions // of routers that quote everything
	WithFull       string
	FirstBoxes     []Box // the others are folded
	OtherBoxes     []Box
	From           []string // vantage points, if there are several
}

// mostDrawn is the largest number of changes that are drawn. mostShown is the largest number of
// intervals that are not folded.
const (
	mostDrawn = 6
	mostShown = 15
)

// WritePage writes one HTML file that needs nothing else.
func (s *Summary) WritePage(w io.Writer) error {
	p := page{Summary: s, Reasons: s.reasons(), Drawn: s.Changes[:min(mostDrawn, len(s.Changes))]}
	p.Placed, p.Share, p.WithFull = regionsOf(s.FullPlaced), regionsOf(s.FullShare), svgchart.Percent(s.PathsWithFull())
	p.FirstBoxes, p.OtherBoxes = s.Boxes[:min(mostShown, len(s.Boxes))], s.Boxes[min(mostShown, len(s.Boxes)):]
	if len(s.From) > 1 {
		p.From = s.From
	}
	if full := sum(s.Full[:]); full > 0 {
		c := svgchart.New(wayAxis(), svgchart.ShareAxis("routers until there"))
		c.Line(cumulative(s.Full, full), svgchart.Colour(0), false)
		p.Where = c.SVG("where the routers that quote everything are")
	}
	if sum(s.Routers[:]) > 0 {
		c := svgchart.New(wayAxis(), svgchart.ShareAxis("routers that quote everything"))
		values := make([]float64, tenths)
		for i := range values {
			values[i] = ratio(s.Full[i], s.Routers[i])
		}
		c.Bars(values, svgchart.Colour(0))
		p.Quotes = c.SVG("routers that quote everything, by their place")
	}
	if len(p.Drawn) > 0 {
		p.Places, p.Errors = places(p.Drawn), errorsOf(p.Drawn)
	}
	return pageTemplate.Execute(w, p)
}

func wayAxis() svgchart.Axis {
	return svgchart.Axis{From: 0, To: tenths, Label: "way from the source to the destination, in tenths", Format: func(v float64) string { return fmt.Sprintf("%.0f", v) }}
}

// places draws the cumulative distribution of the places where changes were detected.
func places(changes []Change) template.HTML {
	c := svgchart.New(wayAxis(), svgchart.ShareAxis("detected until there"))
	for i, change := range changes {
		c.Line(cumulative(change.ByTenth, change.Paths), svgchart.Colour(i), false)
	}
	return c.SVG("where changes were detected")
}

// cumulative returns the points of a distribution over the way.
func cumulative(byTenth [tenths]int, all int) [][2]float64 {
	points, below := [][2]float64{{0, 0}}, 0
	for i, n := range byTenth {
		below += n
		points = append(points, [2]float64{float64(i + 1), ratio(below, all)})
	}
	return points
}

// errorsOf draws the cumulative distribution of the lengths of intervals.
func errorsOf(changes []Change) template.HTML {
	most := 1
	for _, change := range changes {
		for hops := range change.Errors {
			most = max(most, hops)
		}
	}
	whole := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	c := svgchart.New(svgchart.LinearAxis(float64(max(most, 5)), "length of the interval, in hops", whole), svgchart.ShareAxis("intervals up to that"))
	for i, change := range changes {
		points := [][2]float64{{0, 0}}
		for hops := 1; hops <= most; hops++ {
			points = append(points, [2]float64{float64(hops), change.ErrorUpTo(hops)})
		}
		c.Line(points, svgchart.Colour(i), true)
	}
	return c.SVG("how exactly changes were located")
}

// regions holds a share for each region of the way.
type regions struct{ Near, Core, Far string }

func regionsOf(share func(from, to int) (float64, bool)) regions {
	show := func(from, to int) string {
		v, ok := share(from, to)
		if !ok {
			return "–"
		}
		return svgchart.Percent(v)
	}
	return regions{show(0, nearEnd), show(nearEnd, coreEnd), show(coreEnd, tenths)}
}

// WriteText writes the summary for people.
func (s *Summary) WriteText(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%d destinations: %d traced, %d of them answered, %d skipped\n", s.Destinations, s.Traced, s.Answered, s.Skipped)
	for _, reason := range s.reasons() {
		fmt.Fprintf(b, "%d failed: %s\n", s.Failed[reason], printable.Text(reason))
	}
	if s.Damaged > 0 {
		fmt.Fprintf(b, "%d damaged lines were left out\n", s.Damaged)
	}
	if s.Traced > 0 {
		fmt.Fprintf(b, "a router quotes everything on %s of paths\n\n", svgchart.Percent(s.PathsWithFull()))
		if err := s.writeTable(b); err != nil {
			return err
		}
	}
	s.writeSides(b)
	if len(s.Changes) == 0 && s.Traced > 0 {
		b.WriteString("no changes were found\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeTable writes where routers quote everything, and where changes were detected.
func (s *Summary) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	placed, share := regionsOf(s.FullPlaced), regionsOf(s.FullShare)
	fmt.Fprintln(t, "\tpaths\tsource\tcore\tdestination\tto 4 hops")
	fmt.Fprintf(t, "routers that quote everything\t\t%s\t%s\t%s\t\n", placed.Near, placed.Core, placed.Far)
	fmt.Fprintf(t, "their share of all there\t\t%s\t%s\t%s\t\n", share.Near, share.Core, share.Far)
	for _, c := range s.Changes {
		fmt.Fprintf(t, "%s\t%d (%s)\t%s\t%s\t%s\t%s\n", printable.Text(c.What), c.Paths, svgchart.Percent(ratio(c.Paths, s.Traced)),
			svgchart.Percent(c.Between(0, nearEnd)), svgchart.Percent(c.Between(nearEnd, coreEnd)), svgchart.Percent(c.Between(coreEnd, tenths)),
			svgchart.Percent(c.ErrorUpTo(4)))
	}
	return t.Flush()
}

// writeSides writes what several vantage points see.
func (s *Summary) writeSides(b *strings.Builder) {
	for _, side := range s.Sides {
		fmt.Fprintf(b, "%s: towards %d destinations all vantage points see it, so it is at the destination's side; towards %d only some do\n",
			printable.Text(side.What), side.Destination, side.Some)
		for _, f := range side.From {
			where := ""
			if f.AtSource() {
				where = ": at the side of this source"
			}
			fmt.Fprintf(b, "  from %s: towards %d of %d, towards %d of them alone%s\n", printable.Text(cmp.Or(f.Name, "this host")), f.Seen, f.Of, f.Alone, where)
		}
	}
}
