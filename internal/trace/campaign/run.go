package campaign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/trace/probe"
)

// Network sends and receives packets for traces. It is *wire.Conn.
type Network interface {
	trace.Network
	Source() netip.Addr
	Close() error
}

// Campaign traces destinations.
type Campaign struct {
	Names    []string
	Refusals Refusals
	Probe    probe.Probe // with the text that names who sends it
	From     string      // names this vantage point in the results
	Parallel int         // destinations at a time
	Rate     float64     // packets per second, of all together
	MaxHops  int
	// Probed has addresses that were probed before, with the names by which they were: they are not probed again.
	Probed map[netip.Addr]string
	// Resolve finds the address of a name.
	Resolve func(ctx context.Context, name string) (netip.Addr, error)
	Open    func(destination netip.Addr) (Network, error)
	// Permit returns why an address is not probed. If it is nil, all addresses are probed that may be another host's.
	Permit func(netip.Addr) error
	// Done takes each result. It is called by one goroutine at a time.
	Done func(*Record) error
}

// run is a campaign in progress.
type run struct {
	*Campaign
	limiter *rate.Limiter
	mu      sync.Mutex
	probed  map[netip.Addr]string // the name by which an address was probed first
}

// Run traces all destinations, in random order, so that no network gets many probes at once. It ends with ctx, and then
// drops the traces that are under way.
func (c *Campaign) Run(ctx context.Context) error {
	if c.Parallel < 1 || c.Rate <= 0 {
		return errors.New("a campaign needs at least one destination at a time and one packet per second")
	}
	// A burst of a twentieth of a second: the hops of a path are probed close together, others are not crowded out.
	r := &run{Campaign: c, limiter: rate.NewLimiter(rate.Limit(c.Rate), max(1, int(c.Rate/20))), probed: map[netip.Addr]string{}}
	maps.Copy(r.probed, c.Probed)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	names := make(chan string)
	results := make(chan *Record)
	var workers sync.WaitGroup
	for range min(c.Parallel, len(c.Names)) {
		workers.Go(func() {
			for name := range names {
				result := r.one(ctx, name)
				if ctx.Err() != nil {
					return // what was cut short is no result
				}
				results <- result
			}
		})
	}
	go func() {
		defer close(names)
		for _, i := range rand.Perm(len(c.Names)) {
			select {
			case names <- c.Names[i]:
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() {
		workers.Wait()
		close(results)
	}()
	for result := range results {
		if err := c.Done(result); err != nil {
			cancel(err)
		}
	}
	return context.Cause(ctx)
}

// one traces one destination.
func (r *run) one(ctx context.Context, name string) *Record {
	result := &Record{Schema: Schema, Time: time.Now().UTC().Truncate(time.Millisecond), Name: name, From: r.From}
	if r.Refusals.Name(name) {
		result.Skipped = "it asked not to be probed"
		return result
	}
	addr, err := r.Resolve(ctx, name)
	if err != nil {
		result.Error = err.Error()
		return result
	}
	if result.Skipped = r.unfit(name, addr); result.Skipped != "" {
		return result
	}
	path, sent, err := r.trace(ctx, addr)
	if err != nil {
		result.Error = err.Error()
		return result
	}
	j := present.JSON(name, path, sent)
	result.Trace = &j
	return result
}

// unfit returns why an address is not probed, "" if it is.
func (r *run) unfit(name string, addr netip.Addr) string {
	switch {
	case r.Refusals.Addr(addr):
		return "it asked not to be probed"
	case addr.IsMulticast() || addr.IsUnspecified() || addr.IsLoopback() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Sprintf("%v is not the address of another host", addr)
	}
	if r.Permit != nil {
		if err := r.Permit(addr); err != nil {
			return err.Error()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if first, there := r.probed[addr]; there {
		return fmt.Sprintf("its address %v was probed as %s", addr, first)
	}
	r.probed[addr] = name
	return ""
}
