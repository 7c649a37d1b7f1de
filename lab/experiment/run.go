package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// maxAttempts is how often a run is tried when it did not count.
const maxAttempts = 3

// breather is the pause before a run is repeated because the machine was busy;
// it grows with every attempt.
const breather = 2 * time.Second

// Result is what an experiment found.
type Result = report.Result

// Run carries out the scenario's experiment: every procedure in every variant,
// as often as there are repetitions. They take turns, so that whatever disturbs
// the machine for a while disturbs all alike. The result and the plots are also
// written to the output folder.
//
// When ctx is cancelled everything ends within a second or so; the result then
// has the runs done so far, and the error is ctx's.
func Run(ctx context.Context, s *scenario.Scenario, o Options) (*Result, error) {
	if len(s.Procedures) == 0 {
		return nil, fmt.Errorf("scenario %s declares no [[procedure]]; it is only a network for `dcol lab shell`", s.Name)
	}
	e, err := newExperiment(ctx, s, o)
	if err != nil {
		return nil, err
	}
	runErr := e.runAll(ctx)
	closeErr := e.lab.Close()
	e.result.Seconds = time.Since(e.result.Started).Seconds()
	e.result.Summarize(e.variants, names(e.procedures), s.Expects)
	if len(e.result.Runs) == 0 {
		return e.result, errors.Join(runErr, closeErr)
	}
	return e.result, errors.Join(runErr, closeErr, e.write())
}

type experiment struct {
	lab        *Lab
	options    Options
	variants   []string
	procedures []scenario.Procedure
	progress   *progress
	result     *Result
}

func newExperiment(ctx context.Context, s *scenario.Scenario, o Options) (*experiment, error) {
	if o.Repetitions > 0 {
		reps := *s
		reps.Repetitions = o.Repetitions
		s = &reps
	}
	procedures, err := s.Select(o.Procedures)
	if err != nil {
		return nil, err
	}
	e := &experiment{options: o, variants: o.variants(s), procedures: procedures, result: &Result{
		Schema: report.Schema, Scenario: s.Name, Description: s.Description, Started: time.Now(),
		Paths: append([]string{scenario.DirectPath}, s.WithRole(scenario.RoleWaypoint)...), Runs: []report.Run{},
	}}
	e.progress = newProgress(o.Stderr, s, len(e.procedures)*len(e.variants))
	e.progress.begin()
	if e.lab, err = Open(ctx, s, o); err != nil {
		return nil, err
	}
	if e.result.Environment, err = e.lab.Environment(ctx); err != nil {
		return nil, errors.Join(err, e.lab.Close())
	}
	return e, nil
}

func (e *experiment) runAll(ctx context.Context) error {
	s := e.lab.Scenario
	for repetition := 1; repetition <= s.Repetitions; repetition++ {
		for _, name := range e.variants {
			variant, _ := s.Variant(name)
			for _, p := range e.procedures {
				if err := e.repeat(ctx, Order{Variant: variant, Procedure: p, Events: s.Events}, repetition); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// repeat runs an order until it counts. Runs that do not are kept in the
// result, marked. A run that fails every time is an error; one that only was
// not true to the links' parameters is missing from the row.
func (e *experiment) repeat(ctx context.Context, o Order, repetition int) error {
	for attempt := 1; ; attempt++ {
		o.Log = fmt.Sprintf("%s-%s-%d", o.Variant.Name, o.Procedure.Name, repetition)
		if attempt > 1 {
			o.Log += fmt.Sprintf("-again-%d", attempt-1)
		}
		o.Live = e.progress.live(o, repetition)
		run, err := e.lab.Execute(ctx, o)
		if ctx.Err() != nil {
			e.progress.clear()
			return ctx.Err()
		}
		run.Repetition, run.Attempt = repetition, attempt
		if err != nil {
			run.Discarded = err.Error()
		}
		e.result.Runs = append(e.result.Runs, run)
		e.progress.done(run, attempt < maxAttempts)
		if len(e.lab.killed) > 0 || err != nil {
			if rebuildErr := e.rebuild(ctx); rebuildErr != nil {
				return errors.Join(err, rebuildErr)
			}
		}
		switch {
		case errors.Is(err, ErrCorrupt), err != nil && attempt == maxAttempts:
			return fmt.Errorf("%s in variant %s: %w", o.Procedure.Name, o.Variant.Name, err)
		case run.Valid(), attempt == maxAttempts:
			return nil
		case err == nil:
			if err := pause(ctx, time.Duration(attempt)*breather); err != nil {
				return err
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// rebuild replaces a network that is no longer the one declared.
func (e *experiment) rebuild(ctx context.Context) error {
	s := e.lab.Scenario
	if err := e.lab.Close(); err != nil {
		return fmt.Errorf("rebuild the network: %w", err)
	}
	lab, err := Open(ctx, s, e.options)
	if err != nil {
		return fmt.Errorf("rebuild the network: %w", err)
	}
	e.lab = lab
	return nil
}

func names(procedures []scenario.Procedure) []string {
	names := make([]string, len(procedures))
	for i, p := range procedures {
		names[i] = p.Name
	}
	return names
}

// write puts the result and the plots into the output folder.
func (e *experiment) write() error {
	out := e.options.Out
	f, err := os.Create(filepath.Join(out, "result.json"))
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	err = e.result.WriteJSON(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return e.result.WritePlots(out, Marks(e.lab.Scenario.Events))
}
