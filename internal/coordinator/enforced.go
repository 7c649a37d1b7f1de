package coordinator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
)

// enforced is which roots and lists waypoints say that they enforce. Each speaks for itself alone: the bus holds
// it to its own subject. It may lie, as it may give to whomever it likes.
type enforced struct {
	mu     sync.Mutex
	hashes map[string]string // by member, since this coordinator's start
}

const hashLength = 64 // of enrol.HashTrust

func (e *enforced) take(from string, data []byte) error {
	if len(data) != hashLength {
		return fmt.Errorf("%d bytes name no roots and lists", len(data))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hashes[from] = string(data)
	return nil
}

// by is what a member has said last.
func (e *enforced) by(name string) (hash string, said bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	hash, said = e.hashes[name]
	return hash, said
}

// keep forgets those that are members no more.
func (e *enforced) keep(is func(name string) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.hashes {
		if !is(name) {
			delete(e.hashes, name)
		}
	}
}

// Enforcement is how many waypoints have confirmed that they refuse all who are expelled.
type Enforcement struct {
	Of        int      // waypoints in the directory
	Confirmed int      // of them
	Waiting   []string // those of the others that are connected, or may be: of an external bus nobody knows
	Away      []string // those that are not; they get the list when they come back, before anything else
}

// confirmEvery is how often waypoints are counted while somebody waits.
const confirmEvery = 50 * time.Millisecond

// Enforcement waits until all waypoints that are connected have confirmed, or ctx ends.
func (c *Coordinator) Enforcement(ctx context.Context) Enforcement {
	for {
		e := c.enforcement()
		if len(e.Waiting) == 0 || !every(ctx, confirmEvery, nil) {
			return e
		}
	}
}

func (c *Coordinator) enforcement() (out Enforcement) {
	gate, engine := c.gate.Load(), c.engine.Load()
	if gate == nil || engine == nil {
		return out
	}
	var names []string
	gate.view(func(d *directory.Directory) {
		for v := range d.All() {
			if v.Record.IsWaypoint() {
				names = append(names, v.Record.Name)
			}
		}
	})
	slices.Sort(names)
	now := c.trust.Load().Hash
	out.Of = len(names)
	for _, name := range names {
		hash, _ := c.enforced.by(name)
		switch {
		case hash == now:
			out.Confirmed++
		case engine.server != nil && !engine.server.Connected(name):
			out.Away = append(out.Away, name)
		default:
			out.Waiting = append(out.Waiting, name)
		}
	}
	return out
}
