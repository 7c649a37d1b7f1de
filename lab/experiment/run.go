package experiment

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Result is what an experiment found.
type Result = report.Result

// Run carries out the scenario's experiment: every procedure in every variant,
// as often as there are repetitions. They take turns, so that whatever disturbs
// the machine for a while disturbs all alike. The result and the plots are also
// written to the output folder, and each run as soon as it has ended.
//
// When ctx is cancelled everything ends within a second or so; the result then
// has the runs done so far, and the error is ctx's.
func Run(ctx context.Context, s *scenario.Scenario, o Options) (*Result, error) {
	if len(s.Procedures) == 0 {
		return nil, fmt.Errorf("scenario %s declares no [[procedure]]; it is only a network for `dcol lab shell`", s.Name)
	}
	began := time.Now()
	e, err := newExperiment(ctx, s, o)
	if err != nil {
		return nil, err
	}
	runErr := e.crew.work(ctx)
	e.progress.clear()
	closeErr := errors.Join(e.options.reference.close(), e.ledger.spent(time.Since(began)))
	e.result.Seconds = e.ledger.head.Seconds
	e.result.Summarize(e.variants, names(e.procedures), []string{s.Congestion}, e.scenario.Expects)
	if len(e.result.Runs) == 0 {
		return e.result, errors.Join(runErr, closeErr)
	}
	return e.result, errors.Join(runErr, closeErr, e.write())
}

type experiment struct {
	scenario   *scenario.Scenario
	options    Options
	variants   []string
	procedures []scenario.Procedure
	ledger     *ledger
	crew       *crew
	progress   *progress
	result     *Result
	// building is held while a network comes up: that is the most any run does to
	// the machine, and one at a time is enough of it.
	building chan struct{}
}

func newExperiment(ctx context.Context, s *scenario.Scenario, o Options) (_ *experiment, err error) {
	if o.Repetitions > 0 {
		reps := *s
		reps.Repetitions = o.Repetitions
		s = &reps
	}
	e := &experiment{scenario: s, building: make(chan struct{}, 1)}
	if e.procedures, err = s.Select(o.Procedures); err != nil {
		return nil, err
	}
	if err := o.complete(s, s.UsesDCol()); err != nil {
		return nil, err
	}
	e.variants = o.variants(s)
	if o.reference, err = startReference(ctx, o.Backend, o.Log); err != nil {
		return nil, err
	}
	e.options = o
	if err := e.recall(ctx); err != nil {
		return nil, errors.Join(err, o.reference.close())
	}
	return e, nil
}

// recall finds out what is to be done, and what was done before.
func (e *experiment) recall(ctx context.Context) error {
	s, o := e.scenario, e.options
	environment, err := describeMachine(ctx, s, o.reference.net.Backend(), o.Program)
	if err != nil {
		return err
	}
	head, err := newLedgerHead(s, o.Program, environment)
	if err != nil {
		return err
	}
	ledger, recorded, other, err := openLedger(filepath.Join(o.Out, "runs"), head, o.Resume)
	if err != nil {
		return err
	}
	e.ledger = ledger
	e.result = &Result{
		Schema: report.Schema, Scenario: s.Name, Description: s.Description, Started: e.ledger.head.Started,
		Environment: environment, Paths: append([]string{scenario.DirectPath}, s.WithRole(scenario.RoleWaypoint)...),
		Variants: variantsOf(s, e.variants), Runs: []report.Run{},
	}
	tasks := e.tasks(recorded)
	e.crew = &crew{
		governor: newGovernor(o.Jobs), todo: tasks,
		attempt: e.attempt, begun: e.begun, done: e.done,
	}
	e.progress = newProgress(o.Stderr, s, len(tasks))
	e.progress.begin(e.crew.governor.level, len(recorded), o.Out, other)
	return nil
}

// tasks are the runs that are to be made. Of those recorded it takes into the
// result what was asked for.
func (e *experiment) tasks(recorded []report.Run) []*task {
	type key struct {
		variant, procedure string
		repetition         int
	}
	attempts, made, wanted := map[key]int{}, map[key]bool{}, map[key]bool{}
	for _, run := range recorded {
		k := key{run.Variant, run.Procedure, run.Repetition}
		attempts[k] = max(attempts[k], run.Attempt)
		made[k] = made[k] || run.Valid()
	}
	var tasks []*task
	for repetition := 1; repetition <= e.scenario.Repetitions; repetition++ {
		for _, name := range e.variants {
			variant, _ := e.scenario.Variant(name)
			for _, p := range e.procedures {
				k := key{name, p.Name, repetition}
				wanted[k] = true
				if !made[k] {
					tasks = append(tasks, &task{variant: variant, procedure: p, repetition: repetition, attempts: attempts[k]})
				}
			}
		}
	}
	for _, run := range recorded {
		if wanted[key{run.Variant, run.Procedure, run.Repetition}] {
			e.result.Runs = append(e.result.Runs, run)
		}
	}
	return tasks
}

// attempt makes a run on a network of its own.
func (e *experiment) attempt(ctx context.Context, t *task) (report.Run, error) {
	none := report.Run{Variant: t.variant.Name, Procedure: t.procedure.Name, Congestion: e.scenario.Congestion, Started: time.Now(), Log: filepath.Join("logs", t.log())}
	o := e.options
	o.Procedures, o.within, o.luck = []string{t.procedure.Name}, t.log(), luck(e.scenario.Seed, t)
	select {
	case e.building <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	l, err := Open(ctx, e.scenario, o)
	<-e.building
	if err != nil {
		return none, err
	}
	run, err := l.Execute(ctx, Order{
		Variant: t.variant, Procedure: t.procedure, Events: e.scenario.Events, Log: t.log(), Live: e.progress.live(t),
	})
	return run, errors.Join(err, l.Close())
}

// luck is the seed of a run's network. It differs by repetition; procedures of the
// same repetition have the same luck.
func luck(seed int64, t *task) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", seed, t.variant.Name, t.repetition)
	return h.Sum64() | 1
}

func (e *experiment) begun(t *task) { e.progress.begun(t) }

func (e *experiment) done(t *task, run report.Run, again bool) error {
	e.result.Runs = append(e.result.Runs, run)
	e.progress.done(t, run, again, e.crew.governor.level)
	return e.ledger.add(run)
}

// variantsOf are the variants that were asked for, as a result has them.
func variantsOf(s *scenario.Scenario, names []string) []report.Variant {
	variants := make([]report.Variant, len(names))
	for i, name := range names {
		v, _ := s.Variant(name)
		variants[i] = report.Variant{Name: name, Description: v.Description, Coordinates: []report.Coordinate{}}
		for _, c := range v.Coordinates {
			variants[i].Coordinates = append(variants[i].Coordinates, report.Coordinate(c))
		}
	}
	return variants
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
	return e.result.WritePlots(out, Marks(e.scenario.Events))
}
