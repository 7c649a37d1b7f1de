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
	// maxAttempts is how often a run is tried that fails, or that was not true to the
	// links' parameters though no other ran beside it.
	maxAttempts = 3
	// inCompany is how many attempts beside other runs may be lost before a run has
	// the machine to itself.
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
	notUntil time.Time // the machine shall have a rest before

	began   time.Time
	lowered int           // how often its governor had lowered the level then
	company bool          // another ran at the same time
	shared  time.Duration // time under way, times how many were
}

// key is what no two tasks of an experiment have in common.
func (t *task) key() key {
	return key{t.scenario.Name, t.variant.Name, t.procedure.Name, t.scenario.Congestion, t.repetition}
}

// cell is what the repetitions of a run have in common.
type cell struct{ scenario, variant, procedure, congestion string }

func (t *task) cell() cell {
	return cell{t.scenario.Name, t.variant.Name, t.procedure.Name, t.scenario.Congestion}
}

// log is the folder, below logs, of the task's present attempt.
func (t *task) log() string {
	name := fmt.Sprintf("%s-%s-%s-%d", t.variant.Name, t.procedure.Name, t.scenario.Congestion, t.repetition)
	if t.attempts > 1 {
		name += fmt.Sprintf("-again-%d", t.attempts-1)
	}
	return filepath.Join(t.scenario.Name, name)
}

// alone says that nothing may run beside the task.
func (t *task) alone() bool { return t.lost >= inCompany }

// outcome is how an attempt ended.
type outcome struct {
	task *task
	run  report.Run
	err  error // it did not come to its end
}

// cutShort says that the attempt failed for being ended, which says nothing.
func (o outcome) cutShort(ctx context.Context) bool { return o.err != nil && ctx.Err() != nil }

// crew makes the runs of an experiment, as many at a time as the governors say.
// One goroutine owns it; attempts run in others and report to it.
type crew struct {
	governors governors
	todo      []*task // in the order in which they are to begin
	running   []*task
	ended     chan outcome
	since     time.Time // the last change of running

	// dcolFailed counts, of what never worked so far, how often dcol failed.
	dcolFailed map[cell]int

	// attempt makes a run on a network of its own.
	attempt func(context.Context, *task) (report.Run, error)
	// begun and done are told of what happens; again says that a run is repeated.
	begun func(*task)
	done  func(t *task, run report.Run, again bool) error
}

// work makes all runs. When one cannot be made, or ctx ends, it ends those that are
// under way and returns why.
func (c *crew) work(ctx context.Context) error {
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

// fill begins what may begin now. The channel says when to look again, should a
// task have to wait for no other reason than its rest.
func (c *crew) fill(ctx context.Context) <-chan time.Time {
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

// next is the place of the task to begin with, or -1; then wait, unless 0, is how
// long until one has rested.
func (c *crew) next(now time.Time) (i int, wait time.Duration) {
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
			return -1, 0 // and let nobody in before it
		}
		return i, 0
	}
	return -1, wait
}

// level is how many there may be at a time with the task among them: no more than each
// of them bears.
func (c *crew) level(t *task) int {
	level := c.governors.level(t.limit())
	for _, other := range c.running {
		level = min(level, c.governors.level(other.limit()))
	}
	return level
}

func (c *crew) begin(ctx context.Context, i int, now time.Time) {
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
func (c *crew) account(now time.Time) {
	for _, t := range c.running {
		t.shared += now.Sub(c.since) * time.Duration(len(c.running))
	}
	c.since = now
}

// finish takes in how an attempt ended. Its error ends the experiment.
func (c *crew) finish(ctx context.Context, o outcome, now time.Time) error {
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
		// Last, when whatever kept the machine busy is over, and who has to be alone keeps nobody waiting.
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

// neverWorks counts a failure of dcol's, and reports whether there were so many,
// and nothing else, that there is no use in going on.
func (c *crew) neverWorks(t *task) bool {
	if c.dcolFailed[t.cell()] == hasWorked {
		return false
	}
	c.note(t, c.dcolFailed[t.cell()]+1)
	return c.dcolFailed[t.cell()] == maxAttempts
}

func (c *crew) works(t *task) { c.note(t, hasWorked) }

func (c *crew) note(t *task, failures int) {
	if c.dcolFailed == nil {
		c.dcolFailed = map[cell]int{}
	}
	c.dcolFailed[t.cell()] = failures
}
