package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/scenarios"
)

// DefaultMessages is the number of messages or requests that are measured in each place. It is large enough that twenty
// are above the 99th percentile.
const DefaultMessages = 2000

// The names of places that are not in the suite `selection`.
const (
	sharingPlace = "twelve clients, six waypoints"
	alivePlace   = "10,000 connections, 200 of them active"
)

// selection measures how well dcol chooses detours: in the places of the suite `selection`, among clients that share
// waypoints, and with very many connections. Options.Places narrows it.
func selection(ctx context.Context, o Options) ([]Measurement, error) {
	wanted, err := regexp.Compile(o.Places)
	if err != nil {
		return nil, fmt.Errorf("the places to measure: %w", err)
	}
	found, err := selectionPlaces(ctx, o, wanted)
	errs := []error{err}
	measured := len(found) > 0
	for _, other := range []struct {
		place   string
		measure func(context.Context, Options) ([]Measurement, error)
	}{{sharingPlace, sharing}, {alivePlace, alive}} {
		if !wanted.MatchString(other.place) || ctx.Err() != nil {
			continue
		}
		more, err := other.measure(ctx, o)
		found, measured = append(found, more...), true
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", other.place, err))
		}
	}
	err = errors.Join(errs...)
	if !measured && err == nil {
		err = fmt.Errorf("no place matches %q", o.Places)
	}
	return found, err
}

// place is one network with one kind of traffic.
type place struct {
	name      string // scenario and variant
	variant   string
	workload  scenario.Workload
	dyingTrip time.Duration // round trip of the path that an event takes down; 0: none does
	runs      report.Measured
	folder    string // with the runs' logs
}

// selectionPlaces runs the parts of the suite that are wanted. After an interruption, the same command goes on where the
// previous one ended.
func selectionPlaces(ctx context.Context, o Options, wanted *regexp.Regexp) ([]Measurement, error) {
	_, suite, err := scenarios.Find("selection")
	if err != nil {
		return nil, err
	}
	suite.Parts = inPlaces(suite.Parts, wanted, o)
	if len(suite.Parts) == 0 {
		return nil, nil
	}
	folder := filepath.Join(o.Out, suite.Name)
	result, err := experiment.RunSuite(ctx, suite, experiment.Options{
		Programs: o.Programs, Out: folder, Resume: true, Stderr: o.Stderr, Jobs: runner.Automatic, Log: o.Log,
	})
	if result == nil {
		return nil, err
	}
	var places []place
	for i, part := range suite.Parts {
		places = append(places, newPlace(part, result.Parts[i], folder))
	}
	found, figuresErr := figuresOf(places)
	return found, errors.Join(err, figuresErr)
}

// figuresOf returns the figures of all places.
func figuresOf(places []place) ([]Measurement, error) {
	found := []Measurement{failures(places)}
	var errs []error
	for _, p := range places {
		figures, err := p.figures()
		found = append(found, figures...)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	return found, errors.Join(errs...)
}

// failures counts the runs in which dcol failed. These have no goodput and no latencies, so no other figure shows them.
func failures(places []place) Measurement {
	counted := map[string]bool{} // by the runs' logs, because a run may belong to several places
	var failed []string
	for _, p := range places {
		for _, run := range p.runs.Runs {
			if run.Final() && !counted[run.Log] {
				counted[run.Log] = true
				if run.Failed() {
					failed = append(failed, fmt.Sprintf("%s: %s, repetition %d", p.name, run.Procedure, run.Repetition))
				}
			}
		}
	}
	m := once("selection: runs in which dcol failed", "runs", float64(len(failed)))
	m.Repetitions, m.Note = len(counted), strings.Join(failed, "; ")
	return m.target("0", len(failed) == 0)
}

// placeName names a place.
func placeName(scenario, variant string) string { return scenario + " " + variant }

func newPlace(part scenario.Part, runs *report.Result, folder string) place {
	v, _ := part.Of.Variant(part.Variants[0])
	return place{
		name: placeName(part.Scenario, v.Name), variant: v.Name, workload: part.Of.WorkloadIn(v), dyingTrip: dyingTrip(part.Of, v),
		runs: runs.Under(part.Congestions[0]), folder: folder,
	}
}

// dyingTrip returns the round trip, without queues, of the path that an event takes down, or 0 if none does. The path contains
// the event's link and passes no host twice.
func dyingTrip(s *scenario.Scenario, v scenario.Variant) time.Duration {
	shapes := s.Shapes(v)
	delay := func(p scenario.Params) time.Duration {
		if p.Delay == nil {
			return 0
		}
		return p.Delay.Std()
	}
	// walk continues a path from host to the server. passed, trip and dies describe the part before host.
	var walk func(host string, passed []string, trip time.Duration, dies bool) time.Duration
	walk = func(host string, passed []string, trip time.Duration, dies bool) time.Duration {
		if host == s.Workload.Server && dies {
			return trip
		}
		for i, l := range s.Links {
			next := map[string]string{l.A: l.B, l.B: l.A}[host]
			if next == "" || slices.Contains(passed, next) {
				continue
			}
			down := slices.ContainsFunc(s.Events, func(e scenario.Event) bool { return e.Link == l.Name && e.Down != nil && *e.Down })
			there, back := shapes[i].Directions()
			found := walk(next, append(slices.Clone(passed), host), trip+delay(there)+delay(back), dies || down)
			if found > 0 {
				return found
			}
		}
		return 0
	}
	return walk(s.Workload.Client, nil, 0, false)
}

// inPlaces returns a part for each variant that is wanted, with the number of repetitions that its measurement needs.
func inPlaces(parts []scenario.Part, wanted *regexp.Regexp, o Options) (places []scenario.Part) {
	for _, part := range parts {
		for _, variant := range part.Variants {
			if !wanted.MatchString(placeName(part.Scenario, variant)) {
				continue
			}
			one := part
			one.Variants = []string{variant}
			if o.Repetitions > 0 {
				one.Repetitions = o.Repetitions
			}
			v, _ := part.Of.Variant(variant)
			if w := part.Of.WorkloadIn(v); measuresMessages(w, part.Procedures) {
				turns := w.Turns()
				one.Repetitions = (o.Messages + turns - 1) / turns
			}
			places = append(places, one)
		}
	}
	return places
}

// measuresMessages reports whether the latency of messages or requests is measured, beside plain TCP's.
func measuresMessages(w scenario.Workload, procedures []string) bool {
	return w.MadeByDCol() && slices.Contains(procedures, plainTCP)
}

// The procedures of the suite's scenarios.
const (
	plainTCP   = "tcp"
	tcpDetour  = "tcp-detour"
	oneSubflow = "mptcp-1"
	product    = "dcol"
	again      = "dcol-again"   // with a history
	byDefault  = "dcol-default" // without configuration
)

// widest is the procedure's name for dcol with all waypoints, in scenarios in which `dcol` has only one.
const widest = "dcol-4"

// chooser returns the procedure in which dcol chooses among all waypoints.
func (p place) chooser() string {
	if p.has(widest) {
		return widest
	}
	return product
}

// has reports whether a procedure was selected.
func (p place) has(procedure string) bool {
	return slices.ContainsFunc(p.runs.Procedures, func(r report.Procedure) bool { return r.Name == procedure })
}

// fixed lists the fixed choices: procedures in which the paths are given.
func (p place) fixed() (names []string) {
	for _, r := range p.runs.Procedures {
		isFixed := r.Name == oneSubflow || strings.HasPrefix(r.Name, "fixed")
		isNarrow := strings.HasPrefix(r.Name, product) && r.Name != p.chooser() && r.Name != again
		if isFixed || isNarrow {
			names = append(names, r.Name)
		}
	}
	return names
}
