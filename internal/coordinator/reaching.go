package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	reachTick = time.Second
	// reachEvery is how soon who has missed it learns who cannot be reached.
	reachEvery = 10 * time.Minute
	// triedEvery is how soon all learn that more waypoints were tried, of which after a start there are many.
	triedEvery = 5 * time.Second
	maxChecked = 1 << 10 // bytes
)

// runReach has members try each other's addresses, and tells all who cannot be reached.
func (c *Coordinator) runReach(ctx context.Context) {
	told := time.Now()
	var untried []string // when that was told
	for every(ctx, reachTick, nil) {
		now := c.now()
		changed := c.reach.close(now)
		if gate := c.gate.Load(); gate != nil {
			c.check(gate, now)
		}
		now = time.Now()
		wait := reachEvery
		if !slices.Equal(c.reach.untried(), untried) {
			wait = triedEvery
		}
		if !changed && now.Sub(told) < wait {
			continue
		}
		untried = c.reach.untried()
		data, err := c.reachability("")
		if err == nil {
			err = c.tellAll(enrol.TopicReachability, data)
		}
		if err == nil {
			told = now
		}
	}
}

// check asks for what is due.
func (c *Coordinator) check(gate *gatekeeper, now time.Time) {
	e := c.engine.Load()
	var waypoints []waypoint
	gate.view(func(d *directory.Directory) {
		for v := range d.All() {
			if v.Record.IsWaypoint() {
				waypoints = append(waypoints, waypoint{v.Record.Name, v.Record.Addresses, v.Record.Port, v.Record.Punch})
			}
		}
	})
	c.reach.follow(waypoints, now)
	c.ask(e, c.reach.next(c.present(gate, e), now, rand.Text))
}

// takeChecked takes what a member found.
func (c *Coordinator) takeChecked(from string, data []byte) error {
	if len(data) > maxChecked {
		return fmt.Errorf("%d bytes are no answer to a check", len(data))
	}
	var checked enrol.Checked
	if err := json.Unmarshal(data, &checked); err != nil {
		return fmt.Errorf("the answer to a check: %w", err)
	}
	c.reach.answered(from, checked)
	c.claims.answered(from, checked)
	poke(c.claimed)
	return nil
}

// reachability is the coordinator's word on who cannot be reached; of very many, those that fit. For a member
// that asks it is also what others found who tried to reach it.
func (c *Coordinator) reachability(asks string) ([]byte, error) {
	word := enrol.Reachability{
		At: c.now().UTC().Truncate(time.Second), Unreachable: c.reach.unreachable(), Untried: c.reach.untried(), You: c.reach.tried(asks),
	}
	for {
		data, err := json.Marshal(word)
		if err != nil {
			return nil, fmt.Errorf("write who cannot be reached: %w", err)
		}
		if len(data) <= bus.MaxPayload {
			return data, nil
		}
		if len(word.Unreachable)+len(word.Untried) == 0 {
			return nil, errors.New("write who cannot be reached: the message is too large")
		}
		word.Unreachable = word.Unreachable[:len(word.Unreachable)*bus.MaxPayload/len(data)]
		word.Untried = word.Untried[:len(word.Untried)*bus.MaxPayload/len(data)]
	}
}
