package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/svgchart"
	"github.com/detour-collective/dcol/internal/units"
)

// plots draws a connection from its packets.
func plots(r *track.Record) (figures []*figure) {
	t := r.Trace
	if t == nil {
		return nil
	}
	began := r.Began.UnixNano()
	at := func(ns int64) float64 { return float64(ns-began) / 1e9 }
	x := svgchart.LinearAxis(r.Duration, "time", timeTick(r.Duration))
	for _, from := range []track.Side{track.Server, track.Client} {
		for _, f := range []*figure{sequence(r, from, x, at), goodput(r, from, x, at)} {
			if f != nil {
				figures = append(figures, f)
			}
		}
	}
	for _, f := range []*figure{roundTrips(r, x, at), inFlight(r, x, at)} {
		if f != nil {
			figures = append(figures, f)
		}
	}
	return figures
}

// timeTick formats times on an axis of a length, so that neighbours differ.
func timeTick(length float64) func(float64) string {
	digits := max(0, int(math.Ceil(-math.Log10(svgchart.NiceStep(max(length, 1e-6)/5.5)))))
	if length < 0.1 {
		return func(v float64) string { return fmt.Sprintf("%.*f ms", max(0, digits-3), v*1e3) }
	}
	return func(v float64) string { return fmt.Sprintf("%.*f s", digits, v) }
}

func subflowLegend(r *track.Record, used map[int]bool) (list []legend) {
	for i, s := range r.Subflows {
		if used[i] {
			list = append(list, legend{svgchart.Colour(i), fmt.Sprintf("%d: %v to %v", i, s.Client, s.Server)})
		}
	}
	return list
}

// sequence draws data sequence numbers over time, coloured by subflow.
func sequence(r *track.Record, from track.Side, x svgchart.Axis, at func(int64) float64) *figure {
	first, high, found := bounds(r.Trace, from)
	if !found {
		return nil
	}
	c := svgchart.New(x, svgchart.LinearAxis(float64(high-first), "data sequence", size))
	acknowledged(c, r.Trace, from, first, at)
	paths := map[int]*strings.Builder{}
	again := map[int]*strings.Builder{}
	used := map[int]bool{}
	last := map[int][3]float64{} // by subflow: the pixels of the last mark
	for _, s := range r.Trace.Segments {
		if s.From != from {
			continue
		}
		subflow := int(s.Subflow)
		used[subflow] = true
		px := math.Round(2*c.PX(at(s.Time))) / 2
		bottom, top := c.PY(float64(s.Start-first)), c.PY(float64(s.Start-first)+float64(s.Length))
		if s.Kind != track.First {
			// A cross, ringed if another subflow had the data before.
			b := builder(again, subflow)
			y := (bottom + top) / 2
			fmt.Fprintf(b, "M%.1f %.1fl6 6m0 -6l-6 6", px-3, y-3)
			if s.Kind == track.Reinjected {
				fmt.Fprintf(b, "m-2 -3a5 5 0 1 0 10 0a5 5 0 1 0 -10 0")
			}
			continue
		}
		if l, ok := last[subflow]; ok && l[0] == px && math.Abs(l[2]-top) < 0.3 && bottom-top < 0.3 {
			continue // on the same pixel
		}
		last[subflow] = [3]float64{px, bottom, top}
		fmt.Fprintf(builder(paths, subflow), "M%.1f %.1fV%.1f", px, bottom+0.6, top-0.6)
	}
	for i := range r.Subflows {
		if b := paths[i]; b != nil {
			fmt.Fprintf(&c.Body, `<path fill="none" stroke="%s" stroke-width="2" d="%s"/>`, svgchart.Colour(i), b.String())
		}
	}
	for i := range r.Subflows {
		if b := again[i]; b != nil {
			fmt.Fprintf(&c.Body, `<path fill="none" stroke="%s" stroke-width="1.3" d="%s"/>`, svgchart.Colour(i), b.String())
		}
	}
	title := fmt.Sprintf("Data of the %v, by subflow", from)
	return &figure{
		Title: title, SVG: c.SVG(title), Legend: subflowLegend(r, used),
		Note: "Grey: acknowledged. A cross: sent again on its subflow; a ringed one: another subflow had carried the data.",
	}
}

func builder(m map[int]*strings.Builder, key int) *strings.Builder {
	if m[key] == nil {
		m[key] = new(strings.Builder)
	}
	return m[key]
}

func bounds(t *track.Trace, from track.Side) (first, high uint64, ok bool) {
	for _, s := range t.Segments {
		if s.From != from {
			continue
		}
		end := s.Start + uint64(s.Length)
		if !ok {
			first, high, ok = s.Start, end, true
		}
		if int64(s.Start-first) < 0 {
			first = s.Start
		}
		if int64(end-high) > 0 {
			high = end
		}
	}
	return first, high, ok
}

// acknowledged draws the data acknowledgements, a point for each pixel.
func acknowledged(c *svgchart.Chart, t *track.Trace, of track.Side, first uint64, at func(int64) float64) {
	var points [][2]float64
	lastX := -1.0
	for _, a := range t.Acks {
		if a.Of != of || int64(a.Number-first) < 0 {
			continue
		}
		x, y := at(a.Time), float64(a.Number-first)
		px := math.Round(c.PX(x))
		if px == lastX {
			points[len(points)-1][1] = y
			continue
		}
		lastX = px
		points = append(points, [2]float64{x, y})
	}
	c.Line(points, "#9a9a9a", true)
}

// goodput draws new data in equal parts of the time, by subflow.
func goodput(r *track.Record, from track.Side, x svgchart.Axis, at func(int64) float64) *figure {
	const parts = 60
	width := (x.To - x.From) / parts
	sums := map[int]*[parts + 1]float64{}
	most := 0.0
	for _, s := range r.Trace.Segments {
		if s.From != from || s.Kind != track.First {
			continue
		}
		i := int(s.Subflow)
		if sums[i] == nil {
			sums[i] = new([parts + 1]float64)
		}
		part := min(parts-1, max(0, int(at(s.Time)/width)))
		sums[i][part] += float64(s.Length) * 8 / width
		most = max(most, sums[i][part])
	}
	if len(sums) == 0 {
		return nil
	}
	c := svgchart.New(x, svgchart.LinearAxis(most, "", bitRate))
	used := map[int]bool{}
	for i := range r.Subflows {
		if sums[i] == nil {
			continue
		}
		used[i] = true
		var points [][2]float64
		for part, v := range sums[i] {
			points = append(points, [2]float64{float64(part) * width, v})
		}
		for part := range points[:parts] { // each value holds until the next part
			points[part][1] = sums[i][part]
		}
		c.Line(stairs(points), svgchart.Colour(i), false)
	}
	title := fmt.Sprintf("Goodput of the %v, by subflow", from)
	return &figure{Title: title, SVG: c.SVG(title), Note: "New data, in steps of " + span(width) + ".", Legend: subflowLegend(r, used)}
}

// stairs holds each value until the next point.
func stairs(points [][2]float64) (out [][2]float64) {
	for i, p := range points {
		if i > 0 {
			out = append(out, [2]float64{p[0], points[i-1][1]})
		}
		out = append(out, p)
	}
	return out
}

// roundTrips draws samples over time.
func roundTrips(r *track.Record, x svgchart.Axis, at func(int64) float64) *figure {
	least, most := math.Inf(1), 0.0
	for _, s := range r.Trace.RoundTrips {
		v := float64(s.Length) / 1e9
		if v > 0 {
			least, most = min(least, v), max(most, v)
		}
	}
	if most == 0 {
		return nil
	}
	c := svgchart.New(x, svgchart.LogAxis(least, most, "", span))
	used := map[int]bool{}
	marks := map[int]*strings.Builder{}
	drawn := map[[3]int]bool{}
	for _, s := range r.Trace.RoundTrips {
		if s.Length <= 0 {
			continue
		}
		i := int(s.Subflow)
		px, py := c.PX(at(s.Time)), c.PY(float64(s.Length)/1e9)
		cell := [3]int{i, int(px), int(py)}
		if drawn[cell] {
			continue
		}
		drawn[cell], used[i] = true, true
		// Filled: of the server's data. A ring: of the client's.
		if s.Of == track.Server {
			fmt.Fprintf(builder(marks, i), `<circle cx="%.1f" cy="%.1f" r="1.8" fill="%s"/>`, px, py, svgchart.Colour(i))
		} else {
			fmt.Fprintf(builder(marks, i), `<circle cx="%.1f" cy="%.1f" r="2.2" fill="none" stroke="%s"/>`, px, py, svgchart.Colour(i))
		}
	}
	for i := range r.Subflows {
		if b := marks[i]; b != nil {
			c.Body.WriteString(b.String())
		}
	}
	title := "Round trips, by subflow"
	return &figure{Title: title, SVG: c.SVG(title), Legend: subflowLegend(r, used),
		Note: "From data to its acknowledgement, seen from where the capture was made. Dots: the server's data; rings: the client's."}
}

func bitRate(v float64) string {
	if v == 0 {
		return "0"
	}
	return units.FormatRate(v)
}
