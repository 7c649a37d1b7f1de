package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Members send to the addresses in each other's records. So no record goes into the directory with an address of
// which nobody has shown that it is the member's: else one member could have all others send to whom it likes.

const claimTick = 200 * time.Millisecond

// takeRecord takes a member's record, or says which of its addresses are not known to be its own, and has them
// tried.
func (c *Coordinator) takeRecord(ctx context.Context, gate *gatekeeper, from string, data []byte) ([]byte, error) {
	r, unshown, err := gate.take(ctx, from, data)
	if err != nil || len(unshown) == 0 {
		return nil, err
	}
	c.claims.try(from, data, slices.DeleteFunc(slices.Clone(unshown), func(a netip.Addr) bool { return !c.mayTry(from, a) }), r.Port, c.now())
	poke(c.claimed)
	answer, err := json.Marshal(enrol.RecordAnswer{Unshown: unshown})
	if err != nil {
		return nil, fmt.Errorf("answer to a record: %w", err)
	}
	return answer, nil
}

// unshown are the addresses of a record that are not known to be the member's. One is, if the member is connected
// from it, if a session was begun there, or if it is in the record that the directory has and the member can be
// reached. This host says itself where it is.
func (c *Coordinator) unshown(r, have *directory.Record) []netip.Addr {
	if r.Name == c.config.Identity.Name() {
		return nil
	}
	known := c.connectedFrom(r.Name)
	if reach, judged := c.reach.of(r.Name); have != nil && (!judged || reach.Reachable) {
		known = append(known, have.Addresses...)
	}
	return slices.DeleteFunc(slices.Clone(r.Addresses), func(a netip.Addr) bool {
		return slices.Contains(known, a) || c.claims.has(r.Name, a)
	})
}

// connectedFrom is where a member is; of an external bus nobody knows.
func (c *Coordinator) connectedFrom(name string) []netip.Addr {
	e := c.engine.Load()
	if e == nil || e.server == nil {
		return nil
	}
	return e.server.Addresses(name)
}

// mayTry says whether somebody is to send to an address that a member claims. A private one leads to other hosts
// from other networks, so the member must be connected from such a one: then it is in a network of ours.
func (c *Coordinator) mayTry(name string, a netip.Addr) bool {
	return enrol.Shares(c.connectedFrom(name), a)
}

// runClaims has claims tried as they come.
func (c *Coordinator) runClaims(ctx context.Context) {
	wait := time.Hour
	for every(ctx, wait, c.claimed) {
		now := c.now()
		c.claims.close(now)
		gate, e := c.gate.Load(), c.engine.Load()
		if gate != nil && e != nil {
			c.ask(e, c.claims.next(c.present(gate, e), now, rand.Text))
		}
		if wait = time.Hour; c.claims.some() {
			wait = claimTick
		}
	}
}

// present are the members that can be asked.
func (c *Coordinator) present(gate *gatekeeper, e *engine) (names []string) {
	gate.view(func(d *directory.Directory) {
		for v := range d.All() {
			if e.server == nil || e.server.Connected(v.Record.Name) { // of an external bus nobody knows
				names = append(names, v.Record.Name)
			}
		}
	})
	slices.Sort(names)
	return names
}

// ask sends out what is to be tried.
func (c *Coordinator) ask(e *engine, orders []order) {
	for _, o := range orders {
		data, err := json.Marshal(o.Check)
		for _, to := range o.to {
			if err == nil {
				err = e.link.Tell(to, enrol.TopicCheck, data)
			}
		}
		if err != nil {
			c.config.Log.Debug("coordinator: members cannot be asked to try a waypoint", "waypoint", o.Name, "err", err)
		}
	}
}
