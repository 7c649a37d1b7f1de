package battery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Name is that of the suite, as in `dcol-lab run battery`.
const Name = "battery"

// Options configures the battery.
type Options struct {
	Out      string // folder for the result, the page and logs
	Programs programs.Pair
	// Full makes everything as long and as often as published; else it is shortened.
	Full        bool
	Repetitions int // of each run; 0: 3, or with Full those of the publications
	// Tests and Implementations are names of those to run; empty: all.
	Tests, Implementations []string
	Jobs                   int  // networks at a time, or runner.Automatic
	Resume                 bool // continue with the results in the folder
	Stderr                 io.Writer
	Log                    *slog.Logger
}

// The repetitions by default.
const shortRepetitions, fullRepetitions = 3, 10

// repetitions returns the number of repetitions of each run of a test.
func (o Options) repetitions(t test) int {
	switch {
	case o.Repetitions > 0:
		return o.Repetitions
	case !o.Full:
		return shortRepetitions
	case t.runs > 0:
		return t.runs
	}
	return fullRepetitions
}

// mostRepetitions returns the number of repetitions of the test with most.
func (b *battery) mostRepetitions() (most int) {
	for _, t := range b.tests {
		most = max(most, b.options.repetitions(t))
	}
	return most
}

// Run runs the battery and returns the result, which it also writes. When ctx ends, what there is is kept, and the same
// call goes on with the rest.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	if o.Programs, err = programs.Find(); err != nil {
		return nil, err
	}
	chosen, left, err := choose(o)
	if err != nil {
		return nil, err
	}
	for _, why := range left {
		fmt.Fprintln(o.Stderr, why)
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("output folder: %w", err)
	}
	unlock, err := durable.TryLock(o.Out)
	if errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("another battery writes to %s: wait for its end, or choose another folder with --out", o.Out)
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	b := &battery{options: o, tests: chosen, building: make(chan struct{}, 1), congestions: map[string]string{}}
	registered, err := b.register()
	defer func() {
		for _, r := range registered {
			err = errors.Join(err, r.Close())
		}
	}()
	if err != nil {
		return nil, err
	}
	return b.work(ctx)
}

// battery is one that is being run.
type battery struct {
	options     Options
	tests       []test
	reference   *runner.Reference
	ledger      *runner.Ledger
	runs        []runner.Recorded
	wanted      int
	congestions map[string]string // the kernel's names of the coupled ones
	building    chan struct{}     // held while a network comes up
}

// choose selects tests and implementations. left explains which implementations cannot run here.
func choose(o Options) (chosen []test, left []string, err error) {
	known := tests()
	names := make([]string, len(known))
	for i, t := range known {
		names[i] = t.name
	}
	for _, n := range o.Tests {
		if !slices.Contains(names, n) {
			return nil, nil, fmt.Errorf("the battery has no test %q; it has %s", n, strings.Join(names, ", "))
		}
	}
	for _, n := range o.Implementations {
		if !slices.Contains(all, implementation(n)) {
			return nil, nil, fmt.Errorf("the battery knows no implementation %q; it knows tcp, kernel, mptcpd and dcol", n)
		}
	}
	for _, impl := range multipath {
		if why := impl.missing(); why != nil {
			left = append(left, fmt.Sprintf("%s is left out: %v", impl, why))
		}
	}
	for _, t := range known {
		if len(o.Tests) > 0 && !slices.Contains(o.Tests, t.name) {
			continue
		}
		t.impls = slices.DeleteFunc(slices.Clone(t.impls), func(i implementation) bool {
			unwanted := len(o.Implementations) > 0 && i != plainTCP && !slices.Contains(o.Implementations, string(i))
			return unwanted || i.missing() != nil
		})
		t.cases = slices.DeleteFunc(slices.Clone(t.cases), func(c variant) bool {
			_, err := kernelName(nil, c.congestion)
			if err != nil {
				left = append(left, fmt.Sprintf("%s, %s is left out: %v", t.name, c.name, err))
			}
			return err != nil
		})
		if len(t.impls) > 0 && len(t.cases) > 0 {
			chosen = append(chosen, t)
		}
	}
	return chosen, left, nil
}

// register makes the coupled congestion controls known to the kernel.
func (b *battery) register() (registered []*cc.Registration, err error) {
	for _, a := range cc.Algorithms {
		r, err := cc.Register(a)
		if err != nil {
			return registered, fmt.Errorf("congestion control %s: %w", a, err)
		}
		registered = append(registered, r)
		b.congestions[string(a)] = r.Name()
	}
	return registered, nil
}

// scenarioOf describes a test to the runner, whose runs are of scenarios. The description has all on which the runs
// depend, so that those of another version of the test are not mixed with this one's.
func (b *battery) scenarioOf(t test) *scenario.Scenario {
	return &scenario.Scenario{
		Schema: scenario.Schema, Name: t.name, Congestion: testbed.DefaultCongestionControl,
		Description: fmt.Sprintf("%+v %+v", t.cases, lengthsOf(b.options.Full)),
		Procedures:  []scenario.Procedure{{Name: string(dcol), Transport: scenario.MPTCP}},
		Workload:    scenario.Workload{Kind: scenario.Upload},
	}
}

func (b *battery) work(ctx context.Context) (_ *Result, err error) {
	o := b.options
	began := time.Now()
	if b.reference, err = runner.StartReference(ctx, testbed.BackendEmulator, o.Log); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.reference.Close()) }()
	scenarios := make([]*scenario.Scenario, len(b.tests))
	for i, t := range b.tests {
		scenarios[i] = b.scenarioOf(t)
	}
	environment, err := machine()
	if err != nil {
		return nil, err
	}
	head, err := runner.NewHead(scenarios, o.Programs, environment)
	if err != nil {
		return nil, err
	}
	ledger, before, others, err := runner.OpenLedger(filepath.Join(o.Out, "runs"), head, o.Resume)
	if err != nil {
		return nil, err
	}
	for _, why := range others {
		fmt.Fprintln(o.Stderr, why)
	}
	b.ledger = ledger
	todo := b.tasks(scenarios, before)
	fmt.Fprintf(o.Stderr, "battery: %d of %d runs to make\n", len(todo), b.wanted)
	work := runner.Runner{Governors: runner.NewGovernors(o.Jobs), Todo: todo, Attempt: b.attempt, Begun: func(*runner.Task) {}, Done: b.done, KeepGoing: true}
	runErr := work.Work(ctx)
	runErr = errors.Join(runErr, ledger.Spent(time.Since(began)))
	if ctx.Err() != nil {
		runErr = fmt.Errorf("interrupted after %d of %d runs; the same command goes on with the rest", b.made(), b.wanted)
	}
	result := b.result(environment)
	return result, errors.Join(runErr, result.write(o.Out))
}

// tasks returns the runs to make, repetition by repetition.
func (b *battery) tasks(scenarios []*scenario.Scenario, before []runner.Recorded) (todo []*runner.Task) {
	attempts, made, wanted := map[runner.Key]int{}, map[runner.Key]bool{}, map[runner.Key]bool{}
	for _, r := range before {
		attempts[r.Key()] = max(attempts[r.Key()], r.Run.Attempt)
		made[r.Key()] = made[r.Key()] || r.Run.Final()
	}
	for repetition := 1; repetition <= b.mostRepetitions(); repetition++ {
		for i, t := range b.tests {
			if repetition > b.options.repetitions(t) {
				continue
			}
			for _, c := range t.cases {
				for _, impl := range t.impls {
					if _, elsewhere := b.source(t, c, impl); elsewhere || inapplicable(t, c, impl) {
						continue
					}
					task := &runner.Task{Scenario: scenarios[i], Variant: scenario.Variant{Name: c.name}, Procedure: scenario.Procedure{Name: string(impl)}, Repetition: repetition}
					wanted[task.Key()] = true
					if !made[task.Key()] {
						task.Attempts = attempts[task.Key()]
						todo = append(todo, task)
					}
				}
			}
		}
	}
	for _, r := range before {
		if wanted[r.Key()] {
			b.runs = append(b.runs, r)
		}
	}
	b.wanted = len(wanted)
	return todo
}

// source returns the test whose runs answer the question of a case, too, if that is another test and is run.
func (b *battery) source(t test, c variant, impl implementation) (name string, elsewhere bool) {
	const throughput = "throughput"
	for _, other := range b.tests {
		if c.of != "" && other.name == throughput && slices.Contains(other.impls, impl) {
			return throughput, true
		}
	}
	return t.name, false
}

// inapplicable reports whether an implementation cannot have a case.
func inapplicable(t test, c variant, impl implementation) bool {
	switch t.name {
	case "handover-radio": // the kernel's path manager has one way for all connections
		return (c.mode == "activity" || c.mode == "background") && impl == kernelPM
	case "handover-modes":
		// mptcpd uses all addresses at once.
		byHand := impl == mptcpd && (c.mode == "single" || c.mode == "stream-single")
		return byHand || (c.mode == "application") != (impl == plainTCP)
	}
	return false
}

func (b *battery) find(task *runner.Task) (test, variant) {
	for _, t := range b.tests {
		for _, c := range t.cases {
			if t.name == task.Scenario.Name && c.name == task.Variant.Name {
				return t, c
			}
		}
	}
	panic("a task of no test") // tasks made it
}

// attempt makes one run.
func (b *battery) attempt(ctx context.Context, task *runner.Task) (run report.Run, err error) {
	t, c := b.find(task)
	run = report.Run{Variant: c.name, Procedure: task.Procedure.Name, Congestion: task.Scenario.Congestion, Log: filepath.Join("logs", task.Log())}
	logs := filepath.Join(b.options.Out, run.Log)
	if err := emptyFolder(logs); err != nil {
		return run, fmt.Errorf("folder for logs: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, runner.LongestRun, errors.New("it took too long"))
	defer cancel()
	b.building <- struct{}{}
	bed, err := build(ctx, b.options, c.shape, implementation(task.Procedure.Name), uint64(task.Repetition), logs)
	<-b.building
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	if err := bed.ResetStats(); err != nil {
		return run, err
	}
	before, err := crew.ReadMachineTime()
	if err != nil {
		return run, err
	}
	run.Started = time.Now()
	a := &attempt{bed: bed, variant: c, lengths: lengthsOf(b.options.Full), congestions: b.congestions}
	a.measured = func() {
		if after, err := crew.ReadMachineTime(); err == nil {
			run.CPUShare = after.ShareSince(before)
		}
		run.Links = bed.use()
		run.ReferenceP99MS = stats.Milliseconds(b.reference.Lateness(run.Started))
	}
	run.Values, err = t.measure(ctx, a)
	if implementation(task.Procedure.Name) == dcol {
		err = runner.DColFailed(err)
	}
	if err == nil {
		_, run.Cause, run.Discarded = runner.Judge(task.Workload(), run)
	}
	return run, err
}

// emptyFolder makes a folder, without what an earlier battery has left there: programs append to their files.
func emptyFolder(path string) error {
	return errors.Join(os.RemoveAll(path), os.MkdirAll(path, 0o755))
}

// use returns the counters of the shaped links.
func (b *bed) use() (uses []report.LinkUse) {
	names := []string{sharedLink}
	if b.shape.bottleneck == nil {
		names = nil
		for k := range b.shape.lines {
			names = append(names, pathLink(k+1))
		}
	}
	for _, name := range names {
		ab, ba, err := b.LinkStats(name)
		if err != nil {
			continue
		}
		for from, s := range map[string]testbed.LinkStats{"client": ab, "server": ba} {
			uses = append(uses, report.LinkUse{
				Link: name, From: from, Packets: s.Packets, Bytes: s.Bytes, QueueDrops: s.QueueDrops, LossDrops: s.LossDrops, DownDrops: s.DownDrops,
				LatenessP99MS: stats.Milliseconds(s.Late.P99), LatenessMaxMS: stats.Milliseconds(s.Late.Max), EmulationDrops: s.RingDrops + s.WriteErrors,
			})
		}
	}
	return uses
}

// done records a run.
func (b *battery) done(t *runner.Task, run report.Run, again bool) error {
	r := runner.Recorded{Scenario: t.Scenario.Name, Run: run}
	b.runs = append(b.runs, r)
	note := "done"
	switch {
	case again:
		note = "again: " + run.Discarded
	case !run.Valid():
		note = "failed: " + run.Discarded
	}
	fmt.Fprintf(b.options.Stderr, "%d/%d %s, %s, %s, repetition %d: %s\n", b.made(), b.wanted, t.Scenario.Name, t.Variant.Name, t.Procedure.Name, t.Repetition, note)
	return b.ledger.Add(r)
}

// made returns the number of runs that are final.
func (b *battery) made() int {
	made := map[runner.Key]bool{}
	for _, r := range b.runs {
		if r.Run.Final() {
			made[r.Key()] = true
		}
	}
	return len(made)
}

// machine describes what the results depend on.
func machine() (e report.Environment, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return e, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	return report.Environment{
		Kernel: unix.ByteSliceToString(u.Release[:]), CPUs: runtime.NumCPU(), Backend: testbed.BackendEmulator,
		Congestion: testbed.DefaultCongestionControl, Programs: map[string]string{},
	}, nil
}
