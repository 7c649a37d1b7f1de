package experiment

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/lab/jsonfile"
	"github.com/detour-collective/dcol/lab/papers"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/report/page"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Result is the result of an experiment on one scenario.
type Result = report.Result

// Run carries out the scenario's experiment: every procedure in every variant with every congestion control,
// for all repetitions. They take turns, so that a temporary disturbance affects all of them. Run writes the
// result and its report to the output folder, and each run as soon as it has ended.
//
// When ctx is cancelled, all runs end within about a second. The result then contains the completed runs, and
// the error is an *Interrupted.
func Run(ctx context.Context, s *scenario.Scenario, o Options) (*Result, error) {
	suite, err := scenario.SuiteOf(s, o.selection())
	if err != nil {
		return nil, err
	}
	found, err := carryOut(ctx, suite, o, func(found *report.SuiteResult) error {
		result := found.Parts[0]
		if len(result.Runs) == 0 {
			return nil
		}
		return errors.Join(write(o.Out, page.JSONFile, result.WriteJSON), writePage(found, o.Out, page.HTMLFile, page.CSVFile))
	})
	if found == nil {
		return nil, err
	}
	return found.Parts[0], err
}

// RunSuite carries out all experiments of a suite as one, like Run. Their parts take
// turns, too. It writes all results to runs.json, and the report beside that.
func RunSuite(ctx context.Context, suite *scenario.Suite, o Options) (*report.SuiteResult, error) {
	suite, err := suite.Narrow(o.selection())
	if err != nil {
		return nil, err
	}
	return carryOut(ctx, suite, o, func(found *report.SuiteResult) error {
		if found.Fidelity.Runs+found.Fidelity.Discarded == 0 {
			return nil
		}
		return errors.Join(write(o.Out, "runs.json", found.WriteJSON), writePage(found, o.Out, page.HTMLFile, page.CSVFile, page.JSONFile))
	})
}

// writePage writes the files of the report, with the published figures beside the measured ones.
func writePage(found *report.SuiteResult, folder string, files ...string) error {
	published, err := papers.Load()
	if err != nil {
		return err
	}
	return page.Write(found, published, folder, files...)
}

// carryOut executes the runs. It calls keep to write the result before it releases the output folder. It
// returns no result if no run could start.
func carryOut(ctx context.Context, suite *scenario.Suite, o Options, keep func(*report.SuiteResult) error) (*report.SuiteResult, error) {
	began := time.Now()
	e, err := newExperiment(ctx, suite, o)
	if err != nil {
		return nil, err
	}
	runErr := e.runner.Work(ctx)
	if runErr != nil && ctx.Err() != nil {
		runErr = &Interrupted{Done: e.made(), Of: e.wanted, Err: runErr}
	}
	e.progress.clear()
	closeErr := errors.Join(e.options.reference.Close(), e.ledger.Spent(time.Since(began)))
	defer e.release()
	found := e.result(runErr != nil)
	return found, errors.Join(runErr, closeErr, keep(found))
}

// Interrupted reports an experiment that was ended before all its runs were made.
type Interrupted struct {
	Done int // valid runs of this and earlier sessions
	Of   int
	Err  error // the context's
}

func (i *Interrupted) Error() string {
	return fmt.Sprintf("interrupted after %d of %d runs: %v", i.Done, i.Of, i.Err)
}

func (i *Interrupted) Unwrap() error { return i.Err }

// experiment is the state of a suite in progress.
type experiment struct {
	suite       *scenario.Suite
	options     Options
	environment report.Environment
	ledger      *runner.Ledger
	runner      *runner.Runner
	progress    *progress
	wanted      int               // number of all runs
	runs        []runner.Recorded // the selected runs, including earlier sessions'
	release     func()            // unlocks the output folder
	// building is held while a network is built, because that is the heaviest load that
	// a run puts on the machine.
	building chan struct{}
}

func newExperiment(ctx context.Context, suite *scenario.Suite, o Options) (_ *experiment, err error) {
	e := &experiment{suite: suite, building: make(chan struct{}, 1), release: func() {}}
	for _, p := range suite.Parts {
		o.Variants = p.Variants
		if err := o.complete(p.Of, p.Of.UsesDCol()); err != nil {
			return nil, err
		}
	}
	if o.reference, err = runner.StartReference(ctx, o.Backend, o.Log); err != nil {
		return nil, err
	}
	e.options = o
	for _, s := range e.scenarios() {
		o.warn(s)
	}
	err = e.checkCongestion()
	if err == nil {
		err = e.prepare(ctx)
	}
	if err != nil {
		e.release()
		return nil, errors.Join(err, o.reference.Close())
	}
	return e, nil
}

// hold locks the output folder for this experiment.
func (e *experiment) hold() error {
	if err := os.MkdirAll(e.options.Out, 0o755); err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	release, err := durable.TryLock(e.options.Out)
	if errors.Is(err, durable.ErrLocked) {
		return fmt.Errorf("another experiment writes to %s: wait for its end, or choose another folder with --out", e.options.Out)
	}
	if err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	e.release = release
	return notOthers(e.options.Out, e.suite.Name)
}

// notOthers returns an error if a folder contains results of something other than name, which would be
// overwritten.
func notOthers(folder, name string) error {
	var there struct{ Schema, Scenario, Name string }
	err := jsonfile.Read(filepath.Join(folder, page.JSONFile), &there)
	of := cmp.Or(there.Scenario, there.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil || !strings.HasPrefix(there.Schema, "dcol."):
		return fmt.Errorf("%s has a %s that is no experiment's: move it elsewhere, or choose another folder with --out", folder, page.JSONFile)
	case of != name:
		return fmt.Errorf("%s has the results of %s: choose another folder with --out", folder, cmp.Or(of, there.Schema))
	}
	return nil
}

// scenarios returns the scenarios of the parts without repetitions.
func (e *experiment) scenarios() []*scenario.Scenario {
	var all []*scenario.Scenario
	for _, p := range e.suite.Parts {
		if !slices.ContainsFunc(all, func(s *scenario.Scenario) bool { return s.Name == p.Of.Name }) {
			all = append(all, p.Of)
		}
	}
	return all
}

// checkCongestion checks before all measurements that the kernel has every selected congestion control. The
// check may load a module.
func (e *experiment) checkCongestion() error {
	for _, name := range congestions(e.suite.Parts) {
		if err := e.options.reference.Net.Host("reply").SetCongestionControl(name); err != nil {
			if unknown := (*testbed.UnknownCongestionError)(nil); errors.As(err, &unknown) {
				return unknown // without the host's name, because all hosts have the same kernel
			}
			return err
		}
	}
	return nil
}

// prepare determines the tasks and reads earlier runs.
func (e *experiment) prepare(ctx context.Context) (err error) {
	o := e.options
	if err := e.hold(); err != nil {
		return err
	}
	if e.environment, err = describeMachine(ctx, e.scenarios(), o.reference.Net.Backend(), o.Programs.DCol); err != nil {
		return err
	}
	head, err := runner.NewHead(e.scenarios(), o.Programs, e.environment)
	if err != nil {
		return err
	}
	ledger, before, others, err := runner.OpenLedger(filepath.Join(o.Out, "runs"), head, o.Resume)
	if err != nil {
		return err
	}
	e.ledger = ledger
	tasks := e.tasks(before)
	e.runner = &runner.Runner{
		Governors: runner.NewGovernors(o.Jobs), Todo: slices.Clone(tasks),
		Attempt: e.attempt, Begun: e.begun, Done: e.done,
	}
	e.progress = newProgress(o.Stderr, e.suite, tasks)
	e.progress.begin(e.runner.Governors, len(before), o.Out, others)
	return nil
}

// tasks returns the runs to execute, repetition by repetition for all parts. Recorded runs that were selected
// count as done.
func (e *experiment) tasks(before []runner.Recorded) []*runner.Task {
	attempts, made, wanted := map[runner.Key]int{}, map[runner.Key]bool{}, map[runner.Key]bool{}
	for _, r := range before {
		attempts[r.Key()] = max(attempts[r.Key()], r.Run.Attempt)
		made[r.Key()] = made[r.Key()] || r.Run.Final()
	}
	var tasks []*runner.Task
	for repetition := 1; repetition <= repetitions(e.suite.Parts); repetition++ {
		for _, p := range e.suite.Parts {
			if repetition > p.Repetitions {
				continue
			}
			for _, t := range tasksOf(p, repetition) {
				if !wanted[t.Key()] && !made[t.Key()] {
					t.Attempts = attempts[t.Key()]
					tasks = append(tasks, t)
				}
				wanted[t.Key()] = true
			}
		}
	}
	for _, r := range before {
		if wanted[r.Key()] {
			e.runs = append(e.runs, r)
		}
	}
	e.wanted = len(wanted)
	return tasks
}

// made returns the number of selected runs that are done.
func (e *experiment) made() int {
	made := map[runner.Key]bool{}
	for _, r := range e.runs {
		if r.Run.Final() {
			made[r.Key()] = true
		}
	}
	return len(made)
}

// tasksOf returns the runs of a part's repetition.
func tasksOf(p scenario.Part, repetition int) []*runner.Task {
	var tasks []*runner.Task
	procedures, _ := p.Of.Select(p.Procedures) // they were checked
	procedures = interleave(procedures)
	for _, congestion := range p.Congestions {
		s := *p.Of
		s.Congestion = congestion
		for _, name := range p.Variants {
			variant, _ := s.Variant(name)
			for _, procedure := range procedures {
				tasks = append(tasks, &runner.Task{Scenario: &s, Variant: variant, Procedure: procedure, Repetition: repetition})
			}
		}
	}
	return tasks
}

// interleave reorders procedures so that similar ones, which are neighbours in a scenario, do not run at the same time.
// The packets of tunnel procedures pass through processes. Running only those at once overloads the processors.
func interleave(all []scenario.Procedure) []scenario.Procedure {
	mixed, half := make([]scenario.Procedure, 0, len(all)), (len(all)+1)/2
	for i := range half {
		mixed = append(mixed, all[i])
		if half+i < len(all) {
			mixed = append(mixed, all[half+i])
		}
	}
	return mixed
}

// repetitions returns the largest number of repetitions of a part.
func repetitions(parts []scenario.Part) int {
	most := 0
	for _, p := range parts {
		most = max(most, p.Repetitions)
	}
	return most
}

// congestions returns the congestion controls of all parts without repetitions.
func congestions(parts []scenario.Part) []string {
	var names []string
	for _, p := range parts {
		for _, name := range p.Congestions {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// attempt executes a run on its own network.
func (e *experiment) attempt(ctx context.Context, t *runner.Task) (report.Run, error) {
	none := report.Run{
		Variant: t.Variant.Name, Procedure: t.Procedure.Name, Congestion: t.Scenario.Congestion,
		Started: time.Now(), Log: filepath.Join("logs", t.Log()),
	}
	o := e.options
	o.Variants, o.Procedures, o.within, o.seed = []string{t.Variant.Name}, []string{t.Procedure.Name}, t.Log(), seed(t)
	select {
	case e.building <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	l, err := Open(ctx, t.Scenario, o)
	<-e.building
	if err != nil {
		return none, err
	}
	run, err := l.Execute(ctx, Order{
		Variant: t.Variant, Procedure: t.Procedure, Events: t.Scenario.Events, Log: t.Log(), Live: e.progress.live(t),
	})
	return run, errors.Join(err, l.Close())
}

// seed returns the seed of a run's network. All procedures and congestion controls of a repetition get the same one, so
// that they see the same random events.
func seed(t *runner.Task) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", t.Scenario.Seed, t.Variant.Name, t.Repetition)
	return h.Sum64() | 1
}

func (e *experiment) begun(t *runner.Task) { e.progress.begun(t) }

func (e *experiment) done(t *runner.Task, run report.Run, again bool) error {
	r := runner.Recorded{Scenario: t.Scenario.Name, Run: run}
	e.runs = append(e.runs, r)
	e.progress.done(t, run, again, e.runner.Governors)
	return e.ledger.Add(r)
}

// write writes a result to the output folder atomically. A partial file would be rejected as foreign by the
// next run.
func write(folder, name string, into func(w io.Writer) error) error {
	var out bytes.Buffer
	if err := into(&out); err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	return durable.Replace(filepath.Join(folder, name), out.Bytes(), 0o644)
}
