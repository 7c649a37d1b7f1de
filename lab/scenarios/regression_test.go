package scenarios

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/programs/programstest"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
)

// measurementLimit limits how long the regression test may last on a busy machine.
const measurementLimit = 5 * time.Minute

var measure = flag.Bool("measure", false, "measure the suite `regression`; nothing else should run on the machine")

func TestMain(m *testing.M) {
	testbed.Stage() // hosts and wires start as this executable
	os.Exit(m.Run())
}

// The suite `regression` on the real kernel, held to its scenarios' own
// expectations. What this machine was too busy to measure true is no verdict and
// is skipped; what was measured and is wrong fails, and so does any failure of dcol's
// own. How many runs there are is in the suite: it never follows from how they went.
func TestRegression(t *testing.T) {
	program := built(t)
	_, suite, err := Find("regression")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), measurementLimit)
	defer cancel()
	options := experiment.Options{
		Programs: program, Out: t.TempDir(), Stderr: t.Output(),
		Jobs: runtime.NumCPU() + 1, // an idle machine bears more; a run that lost by it has the next try alone
	}
	found := measured(ctx, t, suite, options)
	for i, part := range found.Parts {
		planned := suite.Parts[i].Repetitions
		t.Run(part.Scenario, func(t *testing.T) {
			if len(part.Expectations) == 0 && ctx.Err() != nil {
				t.Skipf("this machine was too busy to measure it in %v", measurementLimit)
			}
			holds(t, part, planned)
		})
	}
}

func measured(ctx context.Context, t *testing.T, suite *scenario.Suite, o experiment.Options) *report.SuiteResult {
	t.Helper()
	found, err := experiment.RunSuite(ctx, suite, o)
	if err != nil && (found == nil || !errors.Is(err, context.DeadlineExceeded)) {
		t.Fatal(err)
	}
	t.Log(found.Fidelity)
	return found
}

// built builds the programs under test. It skips the test where nothing can be measured.
func built(t *testing.T) programs.Pair {
	t.Helper()
	if !*measure {
		t.Skip("measures only when asked to, by `make test` or -measure: it needs the machine for itself")
	}
	return build(t)
}

// build builds the programs. It skips the test where no network can be built.
func build(t *testing.T) programs.Pair {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	if _, err := os.Stat("/proc/sys/net/mptcp/enabled"); err != nil {
		t.Skip("this kernel has no MPTCP")
	}
	for _, name := range []string{"iperf3", "curl", "nginx"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs the program %s", name)
		}
	}
	return programstest.Build(t)
}

// holds fails the test if something expected of a part does not hold. It skips the test if some of it was measured less
// often than planned: a median of fewer runs decides nothing, neither way.
func holds(t *testing.T, part *report.Result, planned int) {
	t.Helper()
	if len(part.Expectations) == 0 {
		t.Fatal("nothing is expected of what runs here: the test cannot fail")
	}
	for _, e := range part.Expectations {
		if !e.Met && !unmeasured(part, e.Variant, planned) {
			t.Errorf("%s (%s): %s%s%s", e.Description, e.Variant, e.Expression, sides(e), e.Error)
		}
	}
	for _, row := range part.Rows {
		if row.Failed > 0 {
			t.Errorf("dcol failed in %d runs of %s in variant %s: %s", row.Failed, row.Procedure, row.Variant, lastCause(part, row))
		}
		if row.N+row.Failed < planned {
			t.Skipf("the machine is too busy to measure %s in variant %s: %s", row.Procedure, row.Variant, lastCause(part, row))
		}
	}
}

// unmeasured reports whether some procedure has fewer runs that count in the variant than planned, so that what is
// expected of it is undecided.
func unmeasured(part *report.Result, variant string, planned int) bool {
	return slices.ContainsFunc(part.Rows, func(r report.Row) bool { return r.Variant == variant && r.N+r.Failed < planned })
}

func sides(e report.Expectation) string {
	if e.Left == nil || e.Right == nil {
		return ""
	}
	return fmt.Sprintf(": %.3f against %.3f", *e.Left, *e.Right)
}

// lastCause returns why the last attempt at a row's run does not count.
func lastCause(part *report.Result, row report.Row) string {
	for _, run := range slices.Backward(part.Runs) {
		if run.Variant == row.Variant && run.Procedure == row.Procedure {
			return run.Discarded
		}
	}
	return "there was no time for it"
}
