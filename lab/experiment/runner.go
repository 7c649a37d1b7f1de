package experiment

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

const (
	// maxAttempts limits the attempts at a run that fails, or whose links were not accurate although no other
	// run was active.
	maxAttempts = 3
	// inCompany limits the failed attempts beside other runs. After that, the run gets the machine to itself.
	inCompany = 2
	// breather is the pause before a run is repeated because the machine was busy;
	// it grows with every attempt.
	breather = 2 * time.Second
)

// task is a run to be made: a procedure in a variant of a scenario, for the n-th
// time.
type task struct {
	scenario   *scenario.Scenario // with the congestion control of the run
	variant    scenario.Variant
	procedure  scenario.Procedure
	repetition int

	attempts int       // so far, those of former sessions too
	tries    int       // of those that count against maxAttempts
	lost     int       // in company
	notUntil time.Time // the machine rests until then

	began   time.Time
	lowered int           // how often its governor had lowered the level then
	company bool          // another ran at the same time
	shared  time.Duration // time under way, times how many were
}

// key returns what no two tasks of an experiment have in common.
func (t *task) key() key {
	return key{t.scenario.Name, t.variant.Name, t.procedure.Name, t.scenario.Congestion, t.repetition}
}

// cell identifies the repetitions of one run.
type cell struct{ scenario, variant, procedure, congestion string }

func (t *task) cell() cell {
	return cell{t.scenario.Name, t.variant.Name, t.procedure.Name, t.scenario.Congestion}
}

// log returns the folder, below logs, of the task's present attempt.
func (t *task) log() string {
	name := fmt.Sprintf("%s-%s-%s-%d", t.variant.Name, t.procedure.Name, t.scenario.Congestion, t.repetition)
	if t.attempts > 1 {
		name += fmt.Sprintf("-again-%d", t.attempts-1)
	}
	return filepath.Join(t.scenario.Name, name)
}

// alone reports whether no other task may run at the same time.
func (t *task) alone() bool { return t.lost >= inCompany }

// outcome is the result of an attempt.
type outcome struct {
	task *task
	run  report.Run
	err  error // set if the run did not complete
}

// cutShort reports whether the attempt failed because the experiment was cancelled.
func (o outcome) cutShort(ctx context.Context) bool { return o.err != nil && ctx.Err() != nil }

// runner executes the runs of an experiment, with a concurrency limit from the governors. One goroutine owns
// it. Attempts run in others and report to it.
type runner struct {
	governors governors
	todo      []*task // in the order in which to start
	running   []*task
	ended     chan outcome
	since     time.Time // the last change of running

	// dcolFailed counts, of what never worked so far, how often dcol failed.
	dcolFailed map[cell]int

	// attempt executes a run on its own network.
	attempt func(context.Context, *task) (report.Run, error)
	// begun and done are callbacks for progress. again is true if the run is repeated.
	begun func(*task)
	done  func(t *task, run report.Run, again bool) error
}

// work makes all runs. When one cannot be made, or ctx ends, it ends those that are
// under way and returns why.
func (c *runner) work(ctx context.Context) error {
	c.ended = make(chan outcome)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for {
		rested := c.fill(ctx)
		var stopped <-chan struct{}
		if len(c.running) == 0 {
			if len(c.todo) == 0 || ctx.Err() != nil {
				return context.Cause(ctx)
			}
			stopped = ctx.Done()
		}
		select {
		case o := <-c.ended:
			if err := c.finish(ctx, o, time.Now()); err != nil {
				cancel(err)
			}
		case <-rested:
		case <-stopped:
		}
	}
}

// fill starts every task that may start now. The channel signals when to try again, if a task only waits for
// its rest to end.
func (c *runner) fill(ctx context.Context) <-chan time.Time {
	for ctx.Err() == nil {
		now := time.Now()
		i, wait := c.next(now)
		switch {
		case i >= 0:
			c.begin(ctx, i, now)
		case wait > 0:
			return time.After(wait)
		default:
			return nil
		}
	}
	return nil
}

// next returns the index of the task to start, or -1. If wait is not 0, a task can start after that time.
func (c *runner) next(now time.Time) (i int, wait time.Duration) {
	if slices.ContainsFunc(c.running, (*task).alone) {
		return -1, 0
	}
	for i, t := range c.todo {
		if rest := t.notUntil.Sub(now); rest > 0 {
			if wait == 0 || rest < wait {
				wait = rest
			}
			continue
		}
		if len(c.running) >= c.level(t) || t.alone() && len(c.running) > 0 {
			return -1, 0 // and start no other before it
		}
		return i, 0
	}
	return -1, wait
}

// level returns how many networks may run at once if the task is added: the lowest level of all running
// tasks.
func (c *runner) level(t *task) int {
	level := c.governors.level(t.limit())
	for _, other := range c.running {
		level = min(level, c.governors.level(other.limit()))
	}
	return level
}

func (c *runner) begin(ctx context.Context, i int, now time.Time) {
	c.account(now)
	t := c.todo[i]
	c.todo = slices.Delete(c.todo, i, i+1)
	t.attempts++
	t.began, t.lowered, t.shared, t.company = now, c.governors.under(t.limit()).lowered, 0, len(c.running) > 0
	for _, other := range c.running {
		other.company = true
	}
	c.running = append(c.running, t)
	c.begun(t)
	go func() {
		run, err := c.attempt(ctx, t)
		c.ended <- outcome{t, run, err}
	}()
}

// account adds the time since the last change to those that ran in it.
func (c *runner) account(now time.Time) {
	for _, t := range c.running {
		t.shared += now.Sub(c.since) * time.Duration(len(c.running))
	}
	c.since = now
}

// finish takes in how an attempt ended. Its error ends the experiment.
func (c *runner) finish(ctx context.Context, o outcome, now time.Time) error {
	c.account(now)
	t, run := o.task, o.run
	c.running = slices.DeleteFunc(c.running, func(r *task) bool { return r == t })
	if o.cutShort(ctx) {
		return nil
	}
	run.Repetition, run.Attempt = t.repetition, t.attempts
	run.Networks = t.shared.Seconds() / now.Sub(t.began).Seconds()
	if o.err != nil {
		run.Cause, run.Discarded = report.CauseFailure, o.err.Error()
		if isDCols(o.err) {
			run.Cause = report.CauseProduct
		}
	} else {
		lateness, _, _ := strain(t.scenario.WorkloadIn(t.variant), run)
		c.governors.under(t.limit()).learn(outlook{networks: run.Networks, cpu: run.CPUShare, lateness: lateness, lowered: t.lowered})
	}
	switch {
	case run.Final():
	case o.err == nil && t.company:
		t.lost++
	default:
		t.tries++
		t.lost = inCompany // who failed is not disturbed when trying again
	}
	again := !run.Final() && t.tries < maxAttempts && !errors.Is(o.err, ErrCorrupt)
	if err := c.done(t, run, again); err != nil {
		return err
	}
	switch {
	case again && o.err == nil:
		// Try it again last. By then the disturbance may be over, and a run that needs the machine to itself
		// delays no other.
		t.notUntil = now.Add(time.Duration(t.tries) * breather)
		c.todo = append(c.todo, t)
	case again:
		c.todo = slices.Insert(c.todo, 0, t)
	case run.Failed() && !c.neverWorks(t):
	case o.err != nil:
		return fmt.Errorf("%s: %s in variant %s: %w", t.scenario.Name, t.procedure.Name, t.variant.Name, o.err)
	case run.Valid():
		c.works(t)
	}
	return nil
}

const hasWorked = -1

// neverWorks counts failures of dcol. It reports whether a task has only ever failed, and so often that going
// on is useless.
func (c *runner) neverWorks(t *task) bool {
	if c.dcolFailed[t.cell()] == hasWorked {
		return false
	}
	c.note(t, c.dcolFailed[t.cell()]+1)
	return c.dcolFailed[t.cell()] == maxAttempts
}

func (c *runner) works(t *task) { c.note(t, hasWorked) }

func (c *runner) note(t *task, failures int) {
	if c.dcolFailed == nil {
		c.dcolFailed = map[cell]int{}
	}
	c.dcolFailed[t.cell()] = failures
}
