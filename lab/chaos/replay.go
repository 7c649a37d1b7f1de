package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/jsonfile"
)

// ReadPlan reads a plan from a file, as a campaign leaves them.
func ReadPlan(path string) (plan.Plan, error) {
	var p plan.Plan
	if err := jsonfile.Read(path, &p); err != nil {
		return p, fmt.Errorf("read the plan: %w", err)
	}
	if err := p.Check(); err != nil {
		return p, fmt.Errorf("read the plan: %s: %w", path, err)
	}
	return p, nil
}

// Replay carries one plan out the given number of times, prints the results, and leaves the logs of failures.
func Replay(ctx context.Context, p plan.Plan, times int, o Options) error {
	c := &campaign{Options: o, dir: o.Out}
	next := make(chan int)
	var mu sync.Mutex
	var failures []error
	var workers sync.WaitGroup
	for range min(o.Worlds, times) {
		workers.Go(func() {
			for n := range next {
				err := c.again(ctx, p, n, &mu)
				mu.Lock()
				failures = append(failures, err)
				mu.Unlock()
			}
		})
	}
	for n := range times {
		next <- n + 1
	}
	close(next)
	workers.Wait()
	return errors.Join(failures...)
}

// again carries a plan out for the nth time.
func (c *campaign) again(ctx context.Context, p plan.Plan, n int, mu *sync.Mutex) error {
	dir := filepath.Join(c.dir, fmt.Sprintf("replay-%d-%d", p.Seed, n))
	out := c.try(ctx, p, dir)
	mu.Lock()
	defer mu.Unlock()
	fmt.Fprintf(c.Stderr, "%v", p)
	for _, k := range out.Strikes {
		fmt.Fprintf(c.Stderr, "  struck %s: %v counts %v %s\n", k.Hit, k.Fault, k.Counts, k.Note)
	}
	fmt.Fprint(c.Stderr, out.Verdict.text())
	switch {
	case out.Error != "":
		return fmt.Errorf("seed %d, replay %d: it could not be carried out: %s", p.Seed, n, out.Error)
	case out.Verdict.Bad():
		return fmt.Errorf("seed %d, replay %d: %w", p.Seed, n, ErrFindings)
	}
	return os.RemoveAll(dir) // nothing to look into
}
