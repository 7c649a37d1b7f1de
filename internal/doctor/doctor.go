// Package doctor examines whether this host can do what dcol needs: each
// requirement is a named check that tells its state and, where something is
// amiss, the mend. It only looks; it changes nothing on the host. Only cmd/dcol
// may import it, and it imports none of the agent: what it must know of the
// agent's configuration comes in Env.
//
// env.go is what checks may look at, host.go the same of the real host. What only
// a trial can tell, trial.go tries in a network namespace of its own. The checks
// stand in requirements_*.go, and render.go shows their results.
package doctor

import (
	"context"
	"fmt"
	"sync"
)

// State is how a requirement stands.
type State string

// The states, from good to bad; Info and Skipped are neither.
const (
	OK      State = "ok"
	Info    State = "info"    // a fact that needs nobody's action
	Skipped State = "skipped" // could not or need not be examined
	Warning State = "warning" // dcol works, but not as well or not for long
	Failed  State = "failed"  // dcol or a role of its does not work
)

// Result is what a check found. Warning and Failed always carry a mend: a
// command, or a sentence that says what to do.
type Result struct {
	State  State  `json:"state"`
	Detail string `json:"detail"`
	Mend   string `json:"mend,omitempty"`
}

// Check is one requirement.
type Check struct {
	Code  string // stable, for programs
	Title string // for people
	Run   runner
}

// runner makes a check.
type runner = func(context.Context, *Env) Result

// verdict makes a result of what is amiss.
type verdict = func(mend, format string, args ...any) Result

// Finding is a check with its result.
type Finding struct {
	Code  string `json:"code"`
	Title string `json:"title"`
	Result
}

// Checks is every check, in the order in which people should read them.
func Checks() []Check {
	var all []Check
	all = append(all, mptcpChecks()...)
	all = append(all, socketChecks()...)
	all = append(all, kernelChecks()...)
	all = append(all, networkChecks()...)
	all = append(all, detourChecks()...)
	all = append(all, memberChecks()...)
	return all
}

// Examine runs the checks at the same time and returns their findings in the
// checks' order. A check that panics, or is not done when ctx ends, has failed;
// the others go on.
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
	// Buffered: a check that comes too late must not wait for a reader.
	result := make(chan Result, 1)
	go func() {
		defer func() {
			if what := recover(); what != nil {
				result <- failed("please report this as a defect of dcol", "the check itself broke: %v", what)
			}
		}()
		result <- check.Run(ctx, env)
	}()
	select {
	case r := <-result:
		return r
	case <-ctx.Done():
		return failed("run `dcol doctor` again when the host is less busy", "not done in time: %v", context.Cause(ctx))
	}
}

// mendReport is the mend of what nobody has foreseen.
const mendReport = "unexpected: please report it with `uname -a`"

func ok(format string, args ...any) Result {
	return Result{State: OK, Detail: fmt.Sprintf(format, args...)}
}

func info(format string, args ...any) Result {
	return Result{State: Info, Detail: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) Result {
	return Result{State: Skipped, Detail: fmt.Sprintf(format, args...)}
}

func warning(mend, format string, args ...any) Result {
	return Result{State: Warning, Detail: fmt.Sprintf(format, args...), Mend: mend}
}

// optional is a fact that a mend would change, for those who care.
func optional(mend, format string, args ...any) Result {
	return Result{State: Info, Detail: fmt.Sprintf(format, args...), Mend: mend}
}

func failed(mend, format string, args ...any) Result {
	return Result{State: Failed, Detail: fmt.Sprintf(format, args...), Mend: mend}
}
