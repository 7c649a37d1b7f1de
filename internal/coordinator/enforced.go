package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/coordinator/loop"
)

// confirmations has the hash of the roots and lists that each waypoint has confirmed to enforce, since this coordinator's
// start. The bus lets each waypoint confirm only for itself. A waypoint may lie, but it could give detours to anybody
// anyway.
type confirmations struct {
	mu     sync.Mutex
	hashes map[string]string // by member
}

const hashLength = 64 // of enrol.HashTrust

func newConfirmations() *confirmations { return &confirmations{hashes: map[string]string{}} }

func (c *confirmations) take(from string, data []byte) error {
	if len(data) != hashLength {
		return fmt.Errorf("the hash of roots and lists must have %d bytes, not %d", hashLength, len(data))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hashes[from] = string(data)
	return nil
}

// by returns the hash that a member has confirmed last.
func (c *confirmations) by(name string) (hash string, confirmed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	hash, confirmed = c.hashes[name]
	return hash, confirmed
}

// keep forgets hosts that are not members.
func (c *confirmations) keep(isMember func(name string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.hashes, func(name, _ string) bool { return !isMember(name) })
}

// Enforcement counts the waypoints that have confirmed to refuse all expelled members.
type Enforcement struct {
	Of        int      // waypoints in the directory
	Confirmed int      // waypoints that have confirmed
	Waiting   []string // connected waypoints that have not confirmed; with an external bus, all that have not, because connections are not known
	Away      []string // waypoints that are not connected; when they come back, they first get the list
}

// confirmEvery is the interval at which Enforcement counts waypoints.
const confirmEvery = 50 * time.Millisecond

// Enforcement waits until all connected waypoints have confirmed, or ctx ends.
func (c *Coordinator) Enforcement(ctx context.Context) Enforcement {
	for {
		e := c.enforcement()
		if len(e.Waiting) == 0 || !loop.Wait(ctx, confirmEvery, nil) {
			return e
		}
	}
}

func (c *Coordinator) enforcement() (out Enforcement) {
	if !c.bus.Up() {
		return out
	}
	var names []string
	c.records.View(func(d *directory.Directory) {
		for v := range d.All() {
			if v.Record.IsWaypoint() {
				names = append(names, v.Record.Name)
			}
		}
	})
	slices.Sort(names)
	now := c.registrar.Message().Hash
	out.Of = len(names)
	for _, name := range names {
		hash, _ := c.enforced.by(name)
		switch {
		case hash == now:
			out.Confirmed++
		case !c.bus.MayBeConnected(name):
			out.Away = append(out.Away, name)
		default:
			out.Waiting = append(out.Waiting, name)
		}
	}
	return out
}
