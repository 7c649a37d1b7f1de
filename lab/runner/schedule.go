package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/lab/report"
)

const (
	// MaxAttempts limits the attempts at a run that fails, or whose links were not accurate although no other
	// run was active.
	MaxAttempts = 3
	// inCompany limits the failed attempts beside other runs. After that, the run is executed alone.
	inCompany = 2
	// repeatPause is the pause before a run is repeated because the machine was busy. It grows with every
	// attempt.
	repeatPause = 2 * time.Second
)

// outcome is the result of an attempt.
type outcome struct {
	task *Task
	run  report.Run
	err  error // set if the run did not complete
}

// cutShort reports whether the attempt failed because the experiment was cancelled.
func (o outcome) cutShort(ctx context.Context) bool { return o.err != nil && ctx.Err() != nil }

// Runner executes the runs of an experiment, with a concurrency limit from the governors. One goroutine owns
// it. Attempts run in others and report to it.
type Runner struct {
	Governors Governors
	Todo      []*Task // in the order in which to start
	// Attempt executes a run on its own network.
	Attempt func(context.Context, *Task) (report.Run, error)
	// Begun and Done are callbacks for progress. again is true if the run is repeated.
	Begun func(*Task)
	Done  func(t *Task, run report.Run, again bool) error
	// KeepGoing continues with the other runs when one cannot be made, if any run was made before.
	KeepGoing bool

	running []*Task
	ended   chan outcome
	since   time.Time // the last change of running

	worked bool // a run was made
	// dcolFailed counts the failures of dcol by kind of run, for kinds that never worked so far.
	dcolFailed map[cell]int
}

// Work makes all runs. When one cannot be made (unless KeepGoing is set), or ctx ends, it ends those that are under way
// and returns the reason.
func (c *Runner) Work(ctx context.Context) error {
	c.ended = make(chan outcome)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for {
		rested := c.fill(ctx)
		var stopped <-chan struct{}
		if len(c.running) == 0 {
			if len(c.Todo) == 0 || ctx.Err() != nil {
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
func (c *Runner) fill(ctx context.Context) <-chan time.Time {
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
func (c *Runner) next(now time.Time) (i int, wait time.Duration) {
	if slices.ContainsFunc(c.running, (*Task).alone) {
		return -1, 0
	}
	for i, t := range c.Todo {
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

// level returns the number of networks that may run at once if the task is added: the lowest level of all running
// tasks.
func (c *Runner) level(t *Task) int {
	level := c.Governors.Level(t.Limit())
	for _, other := range c.running {
		level = min(level, c.Governors.Level(other.Limit()))
	}
	return level
}

func (c *Runner) begin(ctx context.Context, i int, now time.Time) {
	c.account(now)
	t := c.Todo[i]
	c.Todo = slices.Delete(c.Todo, i, i+1)
	t.Attempts++
	t.Began, t.lowered, t.shared, t.company = now, c.Governors.under(t.Limit()).lowered, 0, len(c.running) > 0
	for _, other := range c.running {
		other.company = true
	}
	c.running = append(c.running, t)
	c.Begun(t)
	go func() {
		run, err := c.Attempt(ctx, t)
		c.ended <- outcome{t, run, err}
	}()
}

// account adds the time since the last change to the tasks that ran in it.
func (c *Runner) account(now time.Time) {
	for _, t := range c.running {
		t.shared += now.Sub(c.since) * time.Duration(len(c.running))
	}
	c.since = now
}

// finish takes in the outcome of an attempt. If finish returns an error, the experiment ends.
func (c *Runner) finish(ctx context.Context, o outcome, now time.Time) error {
	c.account(now)
	t, run := o.task, o.run
	c.running = slices.DeleteFunc(c.running, func(r *Task) bool { return r == t })
	if o.cutShort(ctx) {
		return nil
	}
	run.Repetition, run.Attempt = t.Repetition, t.Attempts
	run.Networks = t.shared.Seconds() / now.Sub(t.Began).Seconds()
	if o.err != nil {
		run.Cause, run.Discarded = report.CauseFailure, o.err.Error()
		if IsDColFailure(o.err) {
			run.Cause = report.CauseProduct
		}
	} else {
		lateness, _, _ := Judge(t.Workload(), run)
		c.Governors.under(t.Limit()).observe(observation{networks: run.Networks, cpu: run.CPUShare, lateness: lateness, lowered: t.lowered})
	}
	switch {
	case run.Final():
	case o.err == nil && t.company:
		t.lost++
	default:
		t.tries++
		t.lost = inCompany // who failed is not disturbed when trying again
	}
	again := !run.Final() && t.tries < MaxAttempts && !errors.Is(o.err, ErrCorrupt)
	if err := c.Done(t, run, again); err != nil {
		return err
	}
	switch {
	case again && o.err == nil:
		// Try it again last. By then the disturbance may be over, and a run that needs the machine to itself
		// delays no other.
		t.notUntil = now.Add(time.Duration(t.tries) * repeatPause)
		c.Todo = append(c.Todo, t)
	case again:
		c.Todo = slices.Insert(c.Todo, 0, t)
	case run.Failed() && !c.neverWorks(t):
	case o.err != nil && c.KeepGoing && c.worked && !errors.Is(o.err, ErrCorrupt):
	case o.err != nil:
		return fmt.Errorf("%s: %s in variant %s: %w", t.Scenario.Name, t.Procedure.Name, t.Variant.Name, o.err)
	case run.Valid():
		c.worked = true
		c.works(t)
	}
	return nil
}

const hasWorked = -1

// neverWorks counts failures of dcol. It reports whether a task has only ever failed, and so often that going
// on is useless.
func (c *Runner) neverWorks(t *Task) bool {
	if c.dcolFailed[t.cell()] == hasWorked {
		return false
	}
	c.note(t, c.dcolFailed[t.cell()]+1)
	return c.dcolFailed[t.cell()] == MaxAttempts
}

func (c *Runner) works(t *Task) { c.note(t, hasWorked) }

func (c *Runner) note(t *Task, failures int) {
	if c.dcolFailed == nil {
		c.dcolFailed = map[cell]int{}
	}
	c.dcolFailed[t.cell()] = failures
}
