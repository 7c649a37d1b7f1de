package bench

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/lab/jsonfile"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/traffic"
)

// Targets of the figures.
const (
	leastGoodput   = 0.97 // of what it is compared with: of plain TCP's, MPTCP's headers leave 0.9834
	leastIfUseless = 0.99 // if waypoints cannot add anything
	mostFileTime   = 1.03
	mostLatency    = 1.1
)

// figures returns the figures of the runs in the place.
func (p place) figures() ([]Measurement, error) {
	switch {
	case p.has(byDefault):
		return p.defaultFigures()
	case measuresMessages(p.workload, p.names()):
		return p.messageFigures()
	case p.workload.Kind == scenario.Stream:
		return p.gapFigures()
	case p.workload.Kind == scenario.HTTP:
		return p.fileFigures()
	case p.has(again) && p.turns() > 0:
		return p.turnFigures()
	case p.has(again):
		return p.startFigures()
	default:
		return p.goodputFigures()
	}
}

func (p place) names() (names []string) {
	for _, r := range p.runs.Procedures {
		names = append(names, r.Name)
	}
	return names
}

// row names a figure of the place.
func (p place) row(what string) string { return fmt.Sprintf("selection %s: %s", p.name, what) }

// errNoRuns is returned if no run of a procedure counts.
var errNoRuns = errors.New("no run counts")

// values returns a value of each run of a procedure that counts.
func (p place) values(procedure string, value func(report.Run) float64) ([]float64, error) {
	var values []float64
	for _, run := range p.runs.Valid(p.variant, procedure) {
		values = append(values, value(run))
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("%s: %w", procedure, errNoRuns)
	}
	return values, nil
}

// compared returns the figure of one procedure's runs, with another's as the baseline, and the interval of the ratio of
// their medians.
func (p place) compared(what, unit string, values, baseline []float64) Measurement {
	m := of(p.row(what), unit, values).against(stats.Median(baseline))
	const enough = 3 // runs of each: with fewer, the interval would mean nothing
	if min(len(values), len(baseline)) >= enough {
		interval := stats.BootstrapRatio(stats.Blocks(values, 1), stats.Blocks(baseline, 1), stats.Median)
		m.Interval = &interval
	}
	return m
}

func goodputOf(run report.Run) float64 { return run.GoodputMbps }

// goodputFigures compares the goodput with plain TCP's, and with that of the best fixed choice.
func (p place) goodputFigures() ([]Measurement, error) {
	m, err := p.goodputAgainstPlain("goodput against plain TCP", p.chooser())
	if err != nil {
		return nil, err
	}
	found := []Measurement{m}
	chosen, err := p.values(p.chooser(), goodputOf)
	if err != nil {
		return found, err
	}
	best, fixed, err := p.best(goodputOf)
	if err != nil {
		return found, err
	}
	m = p.compared("goodput against the best fixed choice", "Mbit/s", chosen, fixed)
	m.Note = "the best is " + best
	if len(p.fixed()) == 1 {
		return append(found, m.target(">= 0.99", *m.Ratio >= leastIfUseless)), nil
	}
	return append(found, m.target(">= 0.97", *m.Ratio >= leastGoodput)), nil
}

// goodputAgainstPlain compares a procedure's goodput with plain TCP's.
func (p place) goodputAgainstPlain(what, procedure string) (m Measurement, err error) {
	chosen, err := p.values(procedure, goodputOf)
	if err != nil {
		return m, err
	}
	plain, err := p.values(plainTCP, goodputOf)
	if err != nil {
		return m, err
	}
	m = p.compared(what, "Mbit/s", chosen, plain)
	return m.target(">= 0.97", *m.Ratio >= leastGoodput), nil
}

// best returns the fixed choice with the highest median, and its values.
func (p place) best(value func(report.Run) float64) (name string, values []float64, err error) {
	highest := math.Inf(-1)
	for _, procedure := range p.fixed() {
		v, err := p.values(procedure, value)
		if err != nil {
			return "", nil, err
		}
		if m := stats.Median(v); m > highest {
			name, values, highest = procedure, v, m
		}
	}
	if name == "" {
		return "", nil, errors.New("there is no fixed choice to compare with")
	}
	return name, values, nil
}

// fileFigures compares how long files take.
func (p place) fileFigures() ([]Measurement, error) {
	middle := func(run report.Run) float64 { return run.Latency.P50MS }
	chosen, err := p.values(p.chooser(), middle)
	if err != nil {
		return nil, err
	}
	plain, err := p.values(plainTCP, middle)
	if err != nil {
		return nil, err
	}
	m := p.compared("median time of a file against plain TCP", "ms", chosen, plain)
	return []Measurement{m.target("<= 1.03", *m.Ratio <= mostFileTime)}, nil
}

// gapFigures returns the time in which nothing is delivered when the best path dies.
func (p place) gapFigures() ([]Measurement, error) {
	gaps, err := p.values(p.chooser(), func(run report.Run) float64 { return run.LongestStallMS })
	if err != nil {
		return nil, err
	}
	const trips, sending, receiving = 3, 200, 450
	more, direction := sending, "sending"
	if p.workload.Direction == scenario.Download {
		more, direction = receiving, "receiving"
	}
	limit := float64(trips*p.dyingTrip.Milliseconds() + int64(more))
	m := of(p.row("longest gap, "+direction), "ms", gaps)
	median := m.Value
	m.Value = stats.Quantile(gaps, 1)
	m.Note = fmt.Sprintf("of all runs, that is %.1f round trips of %v of the path that died; the median of the runs' longest is %.0f ms",
		m.Value/stats.Milliseconds(p.dyingTrip), p.dyingTrip, median)
	return []Measurement{m.target(fmt.Sprintf("<= %.0f ms", limit), m.Value <= limit)}, nil
}

// messageFigures compares the 99th percentile of the latencies with plain TCP's. Where plain TCP also ran on the detour,
// it compares it with plain TCP on the better path.
func (p place) messageFigures() ([]Measurement, error) {
	chosen, plain, err := p.besidePlain(p.chooser())
	if err != nil {
		return nil, err
	}
	found := []Measurement{p.laterThan("p99 against plain TCP", chosen, plain)}
	if !p.has(tcpDetour) {
		return found, nil
	}
	detour, err := p.latencies(tcpDetour)
	if err != nil {
		return found, err
	}
	better := plain
	if detour.p99() < plain.p99() {
		better = detour
	}
	found = append(found, p.laterThan("p99 against the best path alone", chosen, better))
	if !p.has(again) {
		return found, nil
	}
	chosen, err = p.latencies(again)
	if err != nil {
		return found, err
	}
	return append(found, p.laterThan("p99 against the best path alone, with a history", chosen, better)), nil
}

// defaultFigures compares dcol without configuration with plain TCP.
func (p place) defaultFigures() ([]Measurement, error) {
	if measuresMessages(p.workload, p.names()) {
		chosen, plain, err := p.besidePlain(byDefault)
		if err != nil {
			return nil, err
		}
		return []Measurement{p.laterThan("p99 against plain TCP, by default", chosen, plain)}, nil
	}
	m, err := p.goodputAgainstPlain("goodput against plain TCP, by default", byDefault)
	if err != nil {
		return nil, err
	}
	// If the first kind added headers, the target would be lower by their share.
	m.Note = "by default, detours are in-band, which adds 0 bytes to a packet of data; MPTCP itself adds 24"
	return []Measurement{m}, nil
}

// besidePlain returns the latencies of a procedure and of plain TCP.
func (p place) besidePlain(procedure string) (chosen, plain latencies, err error) {
	if chosen, err = p.latencies(procedure); err != nil {
		return chosen, plain, err
	}
	plain, err = p.latencies(plainTCP)
	return chosen, plain, err
}

// laterThan compares the 99th percentiles of latencies.
func (p place) laterThan(what string, chosen, baseline latencies) Measurement {
	m := of(p.row(what), "ms", chosen.each)
	m.Value = chosen.p99()
	m = m.against(baseline.p99())
	interval := stats.BootstrapRatio(chosen.blocks, baseline.blocks, p99)
	m.Interval = &interval
	m.Note = fmt.Sprintf("%d and %d of them", chosen.count, baseline.count)
	return m.target("<= 1.1", *m.Ratio <= mostLatency)
}

// latencies holds the latencies of all runs of a procedure, in ms.
type latencies struct {
	blocks [][]float64 // one for each second, because one lost packet delays several messages
	each   []float64   // the 99th percentiles of the runs
	count  int
}

func p99(values []float64) float64 { return stats.Quantile(values, 0.99) }

// p99 returns the 99th percentile of all.
func (l latencies) p99() float64 {
	var all []float64
	for _, b := range l.blocks {
		all = append(all, b...)
	}
	return p99(all)
}

// latencies reads them from what the runs' programs wrote.
func (p place) latencies(procedure string) (l latencies, err error) {
	perSecond := max(1, int(time.Second/p.workload.Interval.Std()))
	for _, run := range p.runs.Valid(p.variant, procedure) {
		var said traffic.Report
		if err := jsonfile.Read(filepath.Join(p.folder, run.Log, "traffic.json"), &said); err != nil {
			return l, fmt.Errorf("read the latencies of a run: %w", err)
		}
		m, err := said.After(p.workload.Skip.Std())
		if err != nil {
			return l, fmt.Errorf("read the latencies of a run: %w", err)
		}
		var ms []float64
		for _, d := range m.Latencies {
			ms = append(ms, stats.Milliseconds(d))
		}
		l.blocks = append(l.blocks, stats.Blocks(ms, perSecond)...)
		l.each = append(l.each, p99(ms))
		l.count += len(ms)
	}
	if l.count == 0 {
		return l, fmt.Errorf("%s: %w", procedure, errNoRuns)
	}
	return l, nil
}
