package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/jsonfile"
	"github.com/detour-collective/dcol/lab/programs"
)

// ErrFindings is returned by campaigns that found something wrong.
var ErrFindings = errors.New("something does not hold: see the result")

// Options configure a campaign.
type Options struct {
	Faults   int    // how many must count
	Seed     uint64 // sequence n has the seed Seed·1,000,000 + n
	Worlds   int    // side by side
	Programs programs.Pair
	Version  string // of dcol; a campaign of another version cannot be resumed
	Out      string // folder
	// ShrinkFor bounds the time spent on making a failing plan smaller; 0: none.
	ShrinkFor time.Duration
	FailFast  bool // begin no other sequence after one that failed
	Stderr    io.Writer
	Log       *slog.Logger
}

// Outcome is the result of one sequence.
type Outcome struct {
	Seed    uint64   `json:"seed"`
	Counted int      `json:"counted"` // faults
	Strikes []Strike `json:"strikes"`
	Verdict Verdict  `json:"verdict"`
	// Shrunk is the smallest plan that fails alike, where it was looked for.
	Shrunk *plan.Plan `json:"shrunk,omitempty"`
	// Again reports whether the whole plan failed alike when it was repeated, as "1 of 1".
	Again string `json:"again,omitempty"`
	// Exempt counts connections that need not have two paths, by the reason.
	Exempt map[string]int `json:"exempt,omitempty"`
	// Idle has the holdings of hosts before any traffic and after all of it.
	Idle [2]map[string]Holdings `json:"idle"`
	// Repeated lists errors of the lab after which the sequence was repeated.
	Repeated []string `json:"repeated,omitempty"`
	// Error is an error of the lab, after which nothing is known.
	Error     string        `json:"error,omitempty"`
	Seconds   float64       `json:"seconds"`
	Recovered time.Duration `json:"recovered_ns"`
	Late      time.Duration `json:"late_ns"`
}

// perSeed is the number of sequences of a campaign's seed.
const perSeed = 1_000_000

// campaign runs sequences side by side until enough faults have counted.
type campaign struct {
	Options
	dir string // of this seed

	mu       sync.Mutex
	next     uint64
	outcomes map[uint64]Outcome
	repeated map[uint64][]string // the lab's errors of an earlier start
	counted  int
	enough   bool // no other sequence is to begin
	failed   error
}

// Run runs a campaign, or resumes one.
func Run(ctx context.Context, o Options) (Result, error) {
	c := &campaign{Options: o, dir: filepath.Join(o.Out, fmt.Sprintf("seed-%d", o.Seed)), outcomes: map[uint64]Outcome{}, repeated: map[uint64][]string{}}
	if err := os.MkdirAll(filepath.Join(c.dir, outcomesDir), 0o755); err != nil {
		return Result{}, err
	}
	unlock, err := durable.TryLock(c.dir)
	if err != nil {
		return Result{}, fmt.Errorf("%s: another campaign writes there: %w", c.dir, err)
	}
	defer unlock()
	if err := c.resume(); err != nil {
		return Result{}, err
	}
	var workers sync.WaitGroup
	for range o.Worlds {
		workers.Go(func() { c.work(ctx) })
	}
	workers.Wait()
	r := c.result()
	err = errors.Join(c.failed, r.write(o.Out), ctx.Err())
	if err == nil && r.Bad() {
		err = ErrFindings
	}
	return r, err
}

// work runs one sequence after the other.
func (c *campaign) work(ctx context.Context) {
	for ctx.Err() == nil {
		seed, ok := c.take()
		if !ok {
			return
		}
		o := c.sequence(ctx, plan.Generate(seed))
		if ctx.Err() != nil {
			return // cut short
		}
		if err := c.keep(o); err != nil {
			c.mu.Lock()
			c.failed = errors.Join(c.failed, err)
			c.mu.Unlock()
			return
		}
	}
}

// take returns the next sequence's seed, or false if enough faults have counted.
func (c *campaign) take() (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counted >= c.Faults || c.enough || c.failed != nil {
		return 0, false
	}
	for {
		seed := c.Seed*perSeed + c.next
		c.next++
		if _, done := c.outcomes[seed]; !done {
			return seed, true
		}
	}
}

// sequence carries a plan out, and shrinks it if it fails.
func (c *campaign) sequence(ctx context.Context, p plan.Plan) Outcome {
	began := time.Now()
	dir := filepath.Join(c.dir, fmt.Sprint(p.Seed))
	o := c.try(ctx, p, dir)
	repeated := c.repeated[p.Seed]
	if o.Error != "" && ctx.Err() == nil { // a failure of the lab: try once more, because the machine may have been busy
		_ = os.Rename(dir, fmt.Sprintf("%s-error-%d", dir, len(repeated)+1)) // for investigation
		repeated = append(repeated, o.Error)
		o = c.try(ctx, p, dir)
	}
	o.Repeated = repeated
	switch {
	case o.Verdict.Bad():
		c.explain(dir, p, o)
		if c.ShrinkFor > 0 {
			c.shrink(ctx, p, &o)
		}
	case o.Error == "":
		_ = os.RemoveAll(dir) // nothing to investigate
	}
	o.Seconds = time.Since(began).Seconds()
	return o
}

// try carries a plan out once.
func (c *campaign) try(ctx context.Context, p plan.Plan, dir string) Outcome {
	o := Outcome{Seed: p.Seed}
	if err := os.RemoveAll(dir); err != nil {
		o.Error = err.Error()
		return o
	}
	seen, err := observe(ctx, p, c.Programs, dir, c.Log)
	o.Strikes, o.Recovered, o.Late, o.Exempt = seen.Strikes, seen.Recovered, seen.Late, seen.Exempt
	o.Idle = [2]map[string]Holdings{seen.Idle, seen.IdleAgain}
	if err != nil {
		o.Error = err.Error()
		return o
	}
	o.Verdict = judge(seen)
	for _, k := range seen.Strikes {
		if k.Counts {
			o.Counted++
		}
	}
	if o.Verdict.Bad() {
		_ = jsonfile.Write(filepath.Join(dir, "observations.json"), seen)
	}
	return o
}

// explain stores what a person needs to investigate a failure.
func (c *campaign) explain(dir string, p plan.Plan, o Outcome) {
	_ = jsonfile.Write(filepath.Join(dir, "plan.json"), p)
	_ = jsonfile.Write(filepath.Join(dir, "outcome.json"), o)
	fmt.Fprintf(c.Stderr, "%v%s", p, o.Verdict.text())
}

// shrink looks for a smaller plan that fails alike.
func (c *campaign) shrink(ctx context.Context, p plan.Plan, o *Outcome) {
	ctx, cancel := context.WithTimeout(ctx, c.ShrinkFor)
	defer cancel()
	dir := filepath.Join(c.dir, fmt.Sprintf("%d-shrunk", p.Seed))
	fails := func(p plan.Plan) (bool, error) {
		tried := c.try(ctx, p, dir)
		return tried.Verdict.like(o.Verdict), ctx.Err()
	}
	again, err := fails(p)
	if err != nil {
		return
	}
	o.Again = "0 of 1"
	if again {
		o.Again = "1 of 1"
		p = plan.Shrink(p, fails)
	}
	o.Shrunk = &p
	fmt.Fprintf(c.Stderr, "seed %d fails again: %s; the smallest that fails alike:\n%v", o.Seed, o.Again, p)
	_ = jsonfile.Write(filepath.Join(c.dir, fmt.Sprint(p.Seed), "shrunk.json"), p)
	_ = os.RemoveAll(dir)
}

// keep stores an outcome, so that a later start resumes from there.
func (c *campaign) keep(o Outcome) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := jsonfile.Write(filepath.Join(c.dir, outcomesDir, fmt.Sprintf("%d.json", o.Seed)), o); err != nil {
		return fmt.Errorf("store an outcome: %w", err)
	}
	c.outcomes[o.Seed] = o
	c.counted += o.Counted
	c.enough = c.enough || c.FailFast && o.Verdict.Bad()
	c.tell(o)
	return c.resultLocked().write(c.Out)
}

// outcomesDir has a file for each sequence.
const outcomesDir = "outcomes"

// tell prints a line about a sequence.
func (c *campaign) tell(o Outcome) {
	word := "ok"
	switch {
	case o.Error != "":
		word = "could not be carried out: " + o.Error
	case o.Verdict.Bad():
		word = "FAILED"
	}
	fmt.Fprintf(c.Stderr, "chaos: %d of %d faults; seed %d: %d of %d counted, %.0f s: %s\n",
		c.counted, c.Faults, o.Seed, o.Counted, len(o.Strikes), o.Seconds, word)
}
