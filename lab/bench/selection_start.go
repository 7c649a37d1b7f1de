package bench

import (
	"fmt"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/stats"
)

// foundShare is the share of the best fixed choice's goodput at which the good waypoints count as found.
const foundShare = 0.9

// startFigures returns the time until the good waypoints among many are found: without a history, and with the history
// that an earlier agent of the same client saved about the same server.
func (p place) startFigures() (found []Measurement, err error) {
	best, whole, err := p.best(goodputOf)
	if err != nil {
		return nil, err
	}
	seconds := int(p.workload.Duration.Seconds())
	// The best choice is measured in the second half, because its slow start would be too low a standard.
	steady, err := p.values(best, func(run report.Run) float64 { return meanRate(run, seconds/2, seconds) })
	if err != nil {
		return nil, err
	}
	level := foundShare * stats.Median(steady)
	untilLevel := func(run report.Run) float64 { return float64(reaches(run.ReceivedMbps, 0, level)) }
	itself, err := p.values(best, untilLevel)
	if err != nil {
		return nil, err
	}
	for _, c := range []struct {
		procedure, words string
		soon             float64 // seconds until the best are found
		least            float64 // share of all bytes of the best choice
	}{{p.chooser(), "without a history", 10, 0.88}, {again, "with a history", 3, 0.93}} {
		until, err := p.values(c.procedure, untilLevel)
		if err != nil {
			return found, err
		}
		m := of(p.row("time to 90 % of the best choice's goodput, "+c.words), "s", until)
		m.Note = fmt.Sprintf("the best is %s, with %.1f Mbit/s in the second half, after %.4g s by the same rule", best, stats.Median(steady), stats.Median(itself))
		found = append(found, m.target(fmt.Sprintf("<= %v s", c.soon), m.Value <= c.soon))
		for _, first := range []int{3, 10} {
			part := func(run report.Run) float64 { return meanRate(run, 0, first) }
			chosen, err := p.values(c.procedure, part)
			if err != nil {
				return found, err
			}
			baseline, err := p.values(best, part)
			if err != nil {
				return found, err
			}
			found = append(found, p.compared(fmt.Sprintf("goodput in the first %d s, %s", first, c.words), "Mbit/s", chosen, baseline))
		}
		chosen, err := p.values(c.procedure, goodputOf)
		if err != nil {
			return found, err
		}
		m = p.compared(fmt.Sprintf("goodput in %d s, %s", seconds, c.words), "Mbit/s", chosen, whole)
		found = append(found, m.target(fmt.Sprintf(">= %v", c.least), *m.Ratio >= c.least))
	}
	return found, nil
}

// turns returns the second in which the network changes, or 0 if it does not.
func (p place) turns() int {
	if len(p.runs.Marks) == 0 {
		return 0
	}
	return int(p.runs.Marks[0].Seconds)
}

// turnFigures returns the time until a waypoint that turned bad is left. The standard is the best fixed choice without
// that waypoint.
func (p place) turnFigures() (found []Measurement, err error) {
	const soon = 5 // seconds
	turn, seconds := p.turns(), int(p.workload.Duration.Seconds())
	best, steady, err := p.best(func(run report.Run) float64 { return meanRate(run, turn+soon, seconds) })
	if err != nil {
		return nil, err
	}
	level := foundShare * stats.Median(steady)
	// In the second of the change, data that the waypoint carried before is still on its way.
	untilBack := func(run report.Run) float64 { return float64(reaches(run.ReceivedMbps, turn+1, level) - turn) }
	itself, err := p.values(best, untilBack)
	if err != nil {
		return nil, err
	}
	for _, c := range []struct{ procedure, words string }{{p.chooser(), "without a history"}, {again, "with a history"}} {
		back, err := p.values(c.procedure, untilBack)
		if err != nil {
			return found, err
		}
		m := of(p.row("time until back at 90 % of the best other choice, "+c.words), "s", back)
		m.Note = fmt.Sprintf("the best is %s, with %.1f Mbit/s after %.4g s by the same rule", best, stats.Median(steady), stats.Median(itself))
		found = append(found, m.target(fmt.Sprintf("<= %d s", soon), m.Value <= soon))
		after, err := p.values(c.procedure, func(run report.Run) float64 { return meanRate(run, turn+soon, seconds) })
		if err != nil {
			return found, err
		}
		found = append(found, p.compared("goodput from 5 s after the change on, "+c.words, "Mbit/s", after, steady))
	}
	return found, nil
}

// meanRate returns the mean goodput of a run from one second to another.
func meanRate(run report.Run, from, to int) float64 {
	rates := run.ReceivedMbps
	return stats.Mean(rates[min(from, len(rates)):min(to, len(rates))])
}

const (
	// steadyFor is the number of seconds over which the average goodput must reach the level.
	steadyFor = 10
	// sustained is the number of seconds over which the average may not be much less.
	sustained = 3
	// muchLess is the part of the goodput that it may not be less than. TCP's goodput over three seconds varies by a tenth even if
	// nothing changes.
	muchLess = 0.85
)

// reaches returns the first second, at or after from, from which the goodput stays at level. The goodput of this second must
// be at least level, and so must the mean of the three seconds and that of the ten seconds that begin there, or until the end.
// No three of these seconds in a row may have much less. If there is no such second, reaches returns the number of seconds. One
// mean alone is not enough: data that waited for a lost packet arrives in one second, and makes the mean high.
func reaches(rates []float64, from int, level float64) int {
	for i := from; i+sustained <= len(rates); i++ {
		next := rates[i:min(i+steadyFor, len(rates))]
		if rates[i] >= level && min(stats.Mean(next[:sustained]), stats.Mean(next)) >= level && stays(next, muchLess*level) {
			return i
		}
	}
	return len(rates)
}

// stays reports whether the mean of every three seconds in a row is at least level.
func stays(rates []float64, level float64) bool {
	for i := 0; i+sustained <= len(rates); i++ {
		if stats.Mean(rates[i:i+sustained]) < level {
			return false
		}
	}
	return true
}
