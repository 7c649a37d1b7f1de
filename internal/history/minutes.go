package history

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// byMinute has periods of a minute each, the earliest first.
type byMinute []api.Period

// add adds what was observed between two times. Each minute gets its part, as if it had happened evenly.
func (m *byMinute) add(p api.Period, from, to time.Time) {
	if p.Observed == 0 && len(p.Paths) == 0 && p.Gained == (api.Gained{}) {
		return
	}
	from, to = from.Round(0), to.Round(0) // the minutes are those of the clock on the wall
	whole := to.Sub(from).Seconds()
	given := 0.0
	for at := begin(from, api.StepMinute); given < 1; {
		next, share := at.Add(time.Minute), 1.0
		if next.Before(to) {
			share = next.Sub(from).Seconds() / whole
		}
		piece := part(&p, given, share)
		merge(m.at(at), &piece)
		at, given = next, share
	}
}

// gain adds what a stretch of a transfer gained.
func (m *byMinute) gain(s *stretch, g api.Gained) {
	m.add(api.Period{Gained: g}, s.end.Add(-time.Duration(s.seconds*float64(time.Second))), s.end)
}

// at returns the period that begins at start.
func (m *byMinute) at(start time.Time) *api.Period {
	i, known := slices.BinarySearchFunc(*m, start, func(p api.Period, at time.Time) int { return p.Start.Compare(at) })
	if !known {
		*m = slices.Insert(*m, i, api.Period{Start: start})
	}
	return &(*m)[i]
}

// part returns the part of p between two shares of its time. The parts of adjoining shares add up to p. A stall counts
// when it begins, and a round trip when it is seen, at the end.
func part(p *api.Period, from, to float64) api.Period {
	share := func(x float64) float64 { return x * (to - from) }
	count := func(n uint64) uint64 { return uint64(float64(n)*to) - uint64(float64(n)*from) }
	g := p.Gained
	out := api.Period{Observed: share(p.Observed), Gained: api.Gained{
		DetourBytes: count(g.DetourBytes), StallTime: share(g.StallTime),
		Saved: share(g.Saved), SavedLow: share(g.SavedLow), SavedHigh: share(g.SavedHigh), SavedUnknown: share(g.SavedUnknown),
	}}
	if from == 0 {
		out.Gained.Stalls = g.Stalls
	}
	for _, u := range p.Paths {
		u.Received, u.Sent = count(u.Received), count(u.Sent)
		if to < 1 {
			u.RTT, u.Samples = 0, 0
		}
		if u.Received+u.Sent+u.Samples > 0 {
			out.Paths = append(out.Paths, u)
		}
	}
	return out
}

// shorten joins the minutes into hours, days or months, until there are at most most.
func (m *byMinute) shorten(most int) {
	for _, step := range []api.HistoryStep{api.StepHour, api.StepDay, api.StepMonth} {
		if len(*m) > most {
			*m = group(*m, step)
		}
	}
}
