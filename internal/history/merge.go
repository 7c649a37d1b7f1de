package history

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// mostPaths bounds the paths of a period. Further paths are counted together.
const mostPaths = 32

// othersKind is the kind under which the paths beyond mostPaths are counted.
const othersKind = "others"

// merge adds the contents of p to into.
func merge(into *api.Period, p *api.Period) {
	into.Observed += p.Observed
	for _, used := range p.Paths {
		addPath(into, used)
	}
	g, more := &into.Gained, p.Gained
	g.DetourBytes += more.DetourBytes
	g.Stalls += more.Stalls
	g.StallTime += more.StallTime
	g.Saved += more.Saved
	g.SavedLow += more.SavedLow
	g.SavedHigh += more.SavedHigh
	g.SavedUnknown += more.SavedUnknown
}

func addPath(p *api.Period, add api.PathUsed) {
	find := func(kind, waypoint string) int {
		return slices.IndexFunc(p.Paths, func(u api.PathUsed) bool { return u.Kind == kind && u.Waypoint == waypoint })
	}
	i := find(add.Kind, add.Waypoint)
	if i < 0 && len(p.Paths) >= mostPaths {
		add.Kind, add.Waypoint = othersKind, ""
		i = find(add.Kind, add.Waypoint)
	}
	if i < 0 {
		p.Paths = append(p.Paths, add)
		return
	}
	u := &p.Paths[i]
	if n := u.Samples + add.Samples; n > 0 {
		u.RTT = (u.RTT*float64(u.Samples) + add.RTT*float64(add.Samples)) / float64(n)
		u.Samples = n
	}
	u.Received += add.Received
	u.Sent += add.Sent
}

// begin returns the beginning of the period of length step that contains t.
func begin(t time.Time, step api.HistoryStep) time.Time {
	switch step {
	case api.StepMinute:
		return t.Truncate(time.Minute)
	case api.StepDay:
		return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, t.Location())
	case api.StepMonth:
		return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, t.Location())
	}
	t = t.Truncate(time.Minute)
	return t.Add(-time.Duration(t.Minute()) * time.Minute) // not Truncate: some time zones are half an hour off
}

// unit returns the length of the kept periods that make up those of length step.
func unit(step api.HistoryStep) api.HistoryStep {
	if step == api.StepMinute {
		return api.StepMinute
	}
	return api.StepHour
}

// group joins periods into periods of length step. Both lists are sorted, the earliest first.
func group(list []api.Period, step api.HistoryStep) (out []api.Period) {
	for i := range list {
		at := begin(list[i].Start, step)
		if n := len(out); n == 0 || !out[n-1].Start.Equal(at) {
			out = append(out, api.Period{Start: at})
		}
		merge(&out[len(out)-1], &list[i])
	}
	return out
}
