package experiment

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// setUpTime is about what a run takes besides its workload.
const setUpTime = time.Second

// progress tells a person how far an experiment is: a line for every run done
// and, on a terminal, one for the run under way.
type progress struct {
	w        io.Writer
	terminal bool
	scenario *scenario.Scenario
	total    int
	counted  int

	mu sync.Mutex // the live line comes from another goroutine
}

// newProgress is of so many kinds of runs, each repeated.
func newProgress(w io.Writer, s *scenario.Scenario, kinds int) *progress {
	if w == nil {
		w = io.Discard
	}
	p := &progress{w: w, scenario: s, total: s.Repetitions * kinds}
	if f, ok := w.(*os.File); ok {
		p.terminal = term.IsTerminal(int(f.Fd()))
	}
	return p
}

func (p *progress) begin() {
	estimate := ""
	if each := p.scenario.RunTime(); each > 0 {
		all := time.Duration(p.total) * (each + setUpTime)
		estimate = fmt.Sprintf(", about %v; Ctrl-C ends it cleanly", all.Round(roundTo(all)))
	}
	fmt.Fprintf(p.w, "%s: %d runs%s\n", p.scenario.Name, p.total, estimate)
}

func roundTo(d time.Duration) time.Duration {
	if d > 10*time.Minute {
		return time.Minute
	}
	return time.Second
}

// live returns what a run under way calls, or nil where nobody could read it.
func (p *progress) live(o Order, repetition int) func(Live) {
	if !p.terminal {
		return nil
	}
	head := p.head(o.Variant.Name, o.Procedure.Name, repetition)
	p.line(head)
	return func(l Live) {
		var parts []string
		for _, path := range l.Paths {
			parts = append(parts, fmt.Sprintf("%s %.1f", path.Path, path.Mbps))
		}
		p.line(fmt.Sprintf("%s  %5.1f s  %6.2f Mbit/s  %s", head, l.Elapsed.Seconds(), l.Mbps, strings.Join(parts, ", ")))
	}
}

func (p *progress) head(variant, procedure string, repetition int) string {
	return fmt.Sprintf("%3d/%d  %s  %s #%d", p.counted+1, p.total, variant, procedure, repetition)
}

// line replaces the live line.
func (p *progress) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "\r\x1b[K%s", text)
}

// clear removes the live line.
func (p *progress) clear() {
	if p.terminal {
		p.line("")
	}
}

// done reports a run.
func (p *progress) done(run report.Run, again bool) {
	p.clear()
	head := p.head(run.Variant, run.Procedure, run.Repetition)
	if run.Valid() {
		p.counted++
		fmt.Fprintf(p.w, "%s  %.2f Mbit/s\n", head, run.GoodputMbps)
		return
	}
	remedy := "repeating it"
	if !again {
		p.counted++
		remedy = "giving it up"
	}
	why := strings.ReplaceAll(run.Discarded, "\n", "\n        ")
	fmt.Fprintf(p.w, "%s  does not count, %s: %s\n", head, remedy, why)
}
