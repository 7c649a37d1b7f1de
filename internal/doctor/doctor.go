// Package doctor examines whether this host has what dcol needs. Each requirement is a named check, which returns its
// state and, if something is wrong, how to fix it. The checks change nothing on the host. Env has the facts about the
// agent's configuration.
//
//	env.go              what checks may access
//	host.go             Env on the real host
//	trial.go            facts that only a trial in a new network namespace shows
//	requirements_*.go   the checks
//	render.go           the output
package doctor

import (
	"context"
	"fmt"
	"sync"
)

// State is the result of a check in one word.
type State string

// The states, from good to bad; Info and Skipped are neither.
const (
	OK      State = "ok"
	Info    State = "info"    // a fact that needs no action
	Skipped State = "skipped" // could not or need not be examined
	Warning State = "warning" // dcol works, but not as well or perhaps not for long
	Failed  State = "failed"  // dcol, or one of its roles, does not work
)

// Result is the outcome of a check. Warning and Failed always have a fix: a command, or a sentence
// with advice. The schema calls it "mend", and keeps the names of its fields.
type Result struct {
	State  State  `json:"state"`
	Detail string `json:"detail"`
	Fix    string `json:"mend,omitempty"`
}

// Check is one requirement.
type Check struct {
	Code  string // stable, for programs
	Title string // for people
	Run   runner
}

// runner performs a check.
type runner = func(context.Context, *Env) Result

// verdict returns a Result for a problem.
type verdict = func(fix, format string, args ...any) Result

// Finding is a check with its result.
type Finding struct {
	Code  string `json:"code"`
	Title string `json:"title"`
	Result
}

// Checks returns all checks in display order.
func Checks() []Check {
	var all []Check
	all = append(all, mptcpChecks()...)
	all = append(all, socketChecks()...)
	all = append(all, kernelChecks()...)
	all = append(all, networkChecks()...)
	all = append(all, detourChecks()...)
	all = append(all, converterChecks()...)
	all = append(all, memberChecks()...)
	return all
}

// Examine runs the checks concurrently and returns their findings in the same order. A check that
// panics or does not end before ctx counts as failed; the others continue.
func Examine(ctx context.Context, env *Env, checks []Check) []Finding {
	findings := make([]Finding, len(checks))
	var group sync.WaitGroup
	for i, check := range checks {
		findings[i] = Finding{Code: check.Code, Title: check.Title}
		group.Go(func() { findings[i].Result = examine(ctx, env, check) })
	}
	group.Wait()
	return findings
}

func examine(ctx context.Context, env *Env, check Check) Result {
	// Buffered, so that a late check does not block for ever.
	result := make(chan Result, 1)
	go func() {
		defer func() {
			if what := recover(); what != nil {
				result <- failed("please report this as a bug in dcol", "the check itself failed: %v", what)
			}
		}()
		result <- check.Run(ctx, env)
	}()
	select {
	case r := <-result:
		return r
	case <-ctx.Done():
		return failed("run `dcol doctor` again when the host is less busy", "not finished in time: %v", context.Cause(ctx))
	}
}

// fixReport is the advice for unexpected errors.
const fixReport = "unexpected: please report it with `uname -a`"

func ok(format string, args ...any) Result {
	return Result{State: OK, Detail: fmt.Sprintf(format, args...)}
}

func info(format string, args ...any) Result {
	return Result{State: Info, Detail: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) Result {
	return Result{State: Skipped, Detail: fmt.Sprintf(format, args...)}
}

func warning(fix, format string, args ...any) Result {
	return Result{State: Warning, Detail: fmt.Sprintf(format, args...), Fix: fix}
}

// optional returns an Info with a fix for those who want to change it.
func optional(fix, format string, args ...any) Result {
	return Result{State: Info, Detail: fmt.Sprintf(format, args...), Fix: fix}
}

func failed(fix, format string, args ...any) Result {
	return Result{State: Failed, Detail: fmt.Sprintf(format, args...), Fix: fix}
}
