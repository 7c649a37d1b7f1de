package experiment

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
)

// setUpTime is about the time that a run takes in addition to its workload.
const setUpTime = 2 * time.Second

// progress shows the progress of an experiment: a line for every completed run and, on a terminal, one line for the
// active runs.
type progress struct {
	w        io.Writer
	terminal *os.File // nil if there is none
	suite    *scenario.Suite
	total    int
	counted  int
	// The remaining time is estimated from the planned and actual durations of single runs,
	// and from the number of runs at a time under each limit of lateness.
	ahead           map[time.Duration]ahead
	expected, spent time.Duration

	mu      sync.Mutex // other goroutines update live lines
	running []*underWay
}

// ahead counts the remaining runs under one limit of lateness.
type ahead struct {
	runs    int
	planned time.Duration
}

// underWay describes an active run.
type underWay struct {
	task *runner.Task
	now  Live
}

func newProgress(w io.Writer, suite *scenario.Suite, tasks []*runner.Task) *progress {
	p := &progress{w: w, suite: suite, total: len(tasks), ahead: map[time.Duration]ahead{}}
	for _, t := range tasks {
		p.plan(t, 1)
	}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.terminal = f
	}
	return p
}

// plan adds runs of the task to the remaining ones.
func (p *progress) plan(t *runner.Task, runs int) {
	a := p.ahead[t.Limit()]
	a.runs += runs
	a.planned += time.Duration(runs) * planned(t)
	p.ahead[t.Limit()] = a
}

// planned returns the expected duration of a task, or 0 if unknown.
func planned(t *runner.Task) time.Duration {
	if d := t.Scenario.RunTime(t.Variant); d > 0 {
		return d + setUpTime
	}
	return 0
}

// begin prints the plan and the number of recorded runs that are reused. others describes recorded runs that cannot be
// reused.
func (p *progress) begin(g runner.Governors, before int, folder string, others []string) {
	for _, why := range others {
		fmt.Fprintf(p.w, "%s: %s: they are made anew\n", folder, why)
	}
	if before > 0 {
		fmt.Fprintf(p.w, "%s has %s of this experiment, which will not be made again (but with --anew)\n", folder, runs(before))
	}
	estimate := ""
	if left := p.left(g); left > 0 {
		estimate = fmt.Sprintf(", about %v; Ctrl-C keeps what is done", left)
		if g.Jobs == runner.Automatic {
			estimate = fmt.Sprintf(", about %v with %d at a time and much less with more, if the machine bears them; Ctrl-C keeps what is done", left, g.Level(runner.MaxWait))
		}
	}
	fmt.Fprintf(p.w, "%s: %s%s\n", p.suite.Name, runs(p.total), estimate)
}

func runs(n int) string {
	if n == 1 {
		return "1 run"
	}
	return fmt.Sprintf("%d runs", n)
}

// left estimates the remaining time at the governors' current concurrency. It returns 0 if the time is unknown.
func (p *progress) left(g runner.Governors) time.Duration {
	all := time.Duration(0)
	for limit, a := range p.ahead {
		alone := a.planned // if runs follow one another
		switch {
		case p.expected > 0:
			alone = time.Duration(float64(alone) * p.spent.Seconds() / p.expected.Seconds())
		case p.counted > 0: // no run has a known duration: use that of completed runs
			alone = p.spent / time.Duration(p.counted) * time.Duration(a.runs)
		}
		all += alone / time.Duration(g.Level(limit))
	}
	return all.Round(roundTo(all))
}

func roundTo(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Minute:
		return time.Minute
	case d > time.Minute:
		return 10 * time.Second
	}
	return time.Second
}

func (p *progress) begun(t *runner.Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = append(p.running, &underWay{task: t})
	p.show()
}

// live returns a callback that shows a run's current figures, or nil if there is no terminal.
func (p *progress) live(t *runner.Task) func(Live) {
	if p.terminal == nil {
		return nil
	}
	return func(l Live) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, r := range p.running {
			if r.task == t {
				r.now = l
			}
		}
		p.show()
	}
}

// show replaces the live line.
func (p *progress) show() {
	if p.terminal == nil {
		return
	}
	line := ""
	switch {
	case len(p.running) == 1:
		r := p.running[0]
		var parts []string
		for _, path := range r.now.Paths {
			parts = append(parts, fmt.Sprintf("%s %.1f", path.Path, path.Mbps))
		}
		line = fmt.Sprintf("%s  %5.1f s  %6.2f Mbit/s  %s", p.head(r.task), r.now.Elapsed.Seconds(), r.now.Mbps, strings.Join(parts, ", "))
	case len(p.running) > 1:
		line = fmt.Sprintf("%3d/%d  %d at a time", p.counted+1, p.total, len(p.running))
		for _, r := range p.running {
			line += fmt.Sprintf("  %s %.1f", p.title(r.task), r.now.Mbps)
		}
	}
	if width, _, err := term.GetSize(int(p.terminal.Fd())); err == nil && width > 1 && len(line) >= width {
		line = line[:width-1]
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
}

func (p *progress) head(t *runner.Task) string {
	return fmt.Sprintf("%3d/%d  %s", p.counted+1, p.total, p.title(t))
}

// title names a task by what distinguishes it from the others.
func (p *progress) title(t *runner.Task) string {
	var words []string
	if len(p.suite.Parts) > 1 {
		words = append(words, t.Scenario.Name)
	}
	words = append(words, t.Variant.Name, t.Procedure.Name)
	if len(congestions(p.suite.Parts)) > 1 {
		words = append(words, t.Scenario.Congestion)
	}
	return fmt.Sprintf("%s #%d", strings.Join(words, " "), t.Repetition)
}

// clear removes the live line.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = nil
	p.show()
}

// done prints a completed run. The runner.Governors give the concurrency from now on.
func (p *progress) done(t *runner.Task, run report.Run, again bool, g runner.Governors) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = slices.DeleteFunc(p.running, func(r *underWay) bool { return r.task == t })
	if p.terminal != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	head := p.head(t)
	switch {
	case run.Valid():
		p.count(t)
		fmt.Fprintf(p.w, "%s  %.2f Mbit/s%s\n", head, run.GoodputMbps, p.outlook(t, g))
	case run.Failed():
		p.count(t)
		fmt.Fprintf(p.w, "%s  dcol failed, which counts: %s\n", head, indented(run.Discarded))
	case again:
		fmt.Fprintf(p.w, "%s  does not count, repeating it: %s\n", head, indented(run.Discarded))
	default:
		p.count(t)
		fmt.Fprintf(p.w, "%s  does not count, giving it up: %s\n", head, indented(run.Discarded))
	}
	p.show()
}

func (p *progress) count(t *runner.Task) {
	p.counted++
	p.plan(t, -1)
	p.expected += planned(t)
	p.spent += time.Since(t.Began)
}

// outlook describes the remaining work, or returns "" if little is left.
func (p *progress) outlook(t *runner.Task, g runner.Governors) string {
	if left := p.left(g); left > 30*time.Second {
		return fmt.Sprintf("  (%d at a time, %v left)", g.Level(t.Limit()), left)
	}
	return ""
}

func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n        ") }
