package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	// banFor is the time for which a member that floods its coordinators gets no JWT.
	banFor   = 10 * time.Minute
	maxPunch = 1 << 10 // bytes
)

// handle answers members' messages on the bus. It is called from several goroutines.
func (c *Coordinator) handle(ctx context.Context, r bus.Request) ([]byte, error) {
	c.prober.Heard(r.From)
	switch r.Topic {
	case enrol.TopicTrust:
		return answerTrust(c.registrar.Message(), string(r.Data))
	case enrol.TopicChecked:
		return nil, c.prober.Answered(r.From, r.Data)
	case enrol.TopicEnforced:
		return nil, c.enforced.take(r.From, r.Data)
	case enrol.TopicReachability:
		return c.prober.Reachability(r.From)
	case enrol.TopicDirectory:
		return c.records.Answer(r.From, r.Data)
	case enrol.TopicRecord:
		return c.takeRecord(ctx, r.From, r.Data)
	case enrol.TopicPunch:
		return nil, c.passPunch(r.From, r.Data)
	}
	return nil, fmt.Errorf("this coordinator does not know the topic %q: it may be older than this dcol", r.Topic)
}

// takeRecord takes a member's record. If some of its addresses are not known to be the member's own, they are tried,
// and the answer names them.
func (c *Coordinator) takeRecord(ctx context.Context, from string, data []byte) ([]byte, error) {
	r, unshown, err := c.records.Take(ctx, from, data)
	if err != nil || len(unshown) == 0 {
		return nil, err
	}
	c.prober.Claim(from, data, unshown, r.Port)
	answer, err := json.Marshal(enrol.RecordAnswer{Unshown: unshown})
	if err != nil {
		return nil, fmt.Errorf("answer to a record: %w", err)
	}
	return answer, nil
}

// passPunch passes a member's request for a packet on to a waypoint. The bus bounds how often a member may ask, and
// the waypoint decides what it sends.
func (c *Coordinator) passPunch(from string, data []byte) error {
	if len(data) > maxPunch {
		return fmt.Errorf("the request to punch has %d bytes, at most %d are allowed", len(data), maxPunch)
	}
	var p enrol.Punch
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("read the request to punch: %w", err)
	}
	if err := p.Check(); err != nil {
		return err
	}
	to, there := p.With, false
	c.records.View(func(d *directory.Directory) {
		v, has := d.Get(to)
		there = has && v.Record.IsWaypoint()
	})
	there = there || c.prober.Claiming(to) // its record is not in the directory yet
	if !there || to == from {
		return fmt.Errorf("%.63q is not a waypoint that can be asked to punch", to)
	}
	p.With = from
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("pass on the request to punch: %w", err)
	}
	if err := c.bus.Tell(to, enrol.TopicPunch, data); err != nil {
		return errors.New("the waypoint cannot be notified now: try again")
	}
	return nil
}

// flood cuts off a member that floods the coordinator. Its JWT is refused, and it gets no other for banFor. Then it can
// renew and connect again.
func (c *Coordinator) flood(name string) {
	c.floods.Add(1)
	if name == c.config.Identity.Name() {
		c.config.Log.Error("coordinator: this host's own agent floods it", "member", name)
		return // the coordinator itself uses the same key
	}
	until := c.config.Clock().Add(banFor)
	account, known, err := c.registrar.Ban(name, until)
	if !known {
		return
	}
	if err == nil && c.bus.Up() {
		ctx, cancel := context.WithTimeout(context.Background(), tellWithin)
		err = c.bus.SetAccount(ctx, account)
		cancel()
	}
	if err != nil {
		c.config.Log.Error("coordinator: a member that floods cannot be cut off", "member", name, "err", err)
		return
	}
	c.config.Log.Warn("coordinator: a member that floods was cut off", "member", name, "until", until)
}
