package report

import (
	"fmt"

	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/svgchart"
)

// inFlight draws the data in flight of the side that sent more.
func inFlight(r *track.Record, x svgchart.Axis, at func(int64) float64) *figure {
	from := track.Server
	if r.FromClient > r.FromServer {
		from = track.Client
	}
	points, most := flight(r.Trace, from, at)
	if most == 0 {
		return nil
	}
	c := svgchart.New(x, svgchart.LinearAxis(most, "", size))
	c.Line(thin(c, points), svgchart.Colour(0), true)
	title := fmt.Sprintf("Data of the %v in flight", from)
	return &figure{Title: title, SVG: c.SVG(title), Note: "Sent on any subflow, and not yet acknowledged, by data sequence numbers, seen from where the capture was made."}
}

// flight returns the data in flight after each segment and each acknowledgement, and the most.
func flight(t *track.Trace, from track.Side, at func(int64) float64) (points [][2]float64, most float64) {
	first, _, found := bounds(t, from)
	if !found {
		return nil, 0
	}
	var high, acked int64 // since first
	i, j := 0, 0
	for i < len(t.Segments) || j < len(t.Acks) {
		var now int64
		if j == len(t.Acks) || i < len(t.Segments) && t.Segments[i].Time <= t.Acks[j].Time {
			s := t.Segments[i]
			i++
			if s.From != from {
				continue
			}
			now, high = s.Time, max(high, int64(s.Start+uint64(s.Length)-first))
		} else {
			a := t.Acks[j]
			j++
			if a.Of != from {
				continue
			}
			now, acked = a.Time, max(acked, int64(a.Number-first))
		}
		v := float64(max(0, high-acked))
		points, most = append(points, [2]float64{at(now), v}), max(most, v)
	}
	return points, most
}

// thin keeps the greatest value of each pixel column, and the last.
func thin(c *svgchart.Chart, points [][2]float64) (kept [][2]float64) {
	column := -1
	for i, p := range points {
		px := int(c.PX(p[0]))
		switch {
		case px != column || i == len(points)-1:
			kept = append(kept, p)
		case p[1] > kept[len(kept)-1][1]:
			kept[len(kept)-1][1] = p[1]
		}
		column = px
	}
	return kept
}
