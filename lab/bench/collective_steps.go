package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/crowd"
)

// The steps of the benchmark of a collective, in their order.

// join makes most members join, one by one. Each disconnects when its record is stored, because the cost of sending
// each record to all listeners is measured separately.
func (c *crowdNetwork) join(_ context.Context, r *crowdRun) (err error) {
	if r.empty, err = c.memory(); err != nil {
		return err
	}
	if err := c.joinSome(&r.join, c.plan.members-c.plan.late, false); err != nil {
		return err
	}
	r.registered, err = c.memory()
	return err
}

func (c *crowdNetwork) joinSome(p *phase, count int, stay bool) error {
	var lines []string
	if err := c.hub.Call("Invite", count, &lines); err != nil {
		return err
	}
	return c.measure(p, func() error { return c.work(p, "Join", crowd.Joining{Lines: lines, Stay: stay}) })
}

// work makes members do something that all of them must be able to do.
func (c *crowdNetwork) work(p *phase, method string, args any) error {
	if err := c.members.Call(method, args, &p.Work); err != nil {
		return err
	}
	if p.Failed > 0 {
		return fmt.Errorf("%d of %d members could not, the last because: %s", p.Failed, len(p.Millis), p.Why)
	}
	return nil
}

// connect connects the members that have joined to the bus. They stay connected.
func (c *crowdNetwork) connect(_ context.Context, r *crowdRun) error {
	err := c.measure(&r.connect, func() error { return c.work(&r.connect, "Connect", struct{}{}) })
	if err != nil {
		return err
	}
	return c.settled()
}

// settled waits until the sample of members has complete copies of the directory.
func (c *crowdNetwork) settled() error {
	const patience = 5 * time.Minute
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		if err := c.state(new(crowd.HubState), new(crowd.MembersState)); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			return fmt.Errorf("after %v: %w", patience, err)
		}
	}
}

// state queries both sides, and returns an error if a copy of the directory is incomplete.
func (c *crowdNetwork) state(hub *crowd.HubState, members *crowd.MembersState) error {
	if err := c.hub.Call("State", struct{}{}, hub); err != nil {
		return err
	}
	if err := c.members.Call("State", hub.Revision, members); err != nil {
		return err
	}
	for i, copied := range members.Copies {
		if copied.Behind || copied.Members != hub.Members || copied.Revision != hub.Revision {
			return fmt.Errorf("the copy of member %d has %d of %d records, and is at revision %d of %d", i, copied.Members, hub.Members, copied.Revision, hub.Revision)
		}
	}
	return nil
}

// idle measures the cost of connected members while nothing but the coordinators' regular work happens.
func (c *crowdNetwork) idle(ctx context.Context, r *crowdRun) error {
	return c.measure(&r.idle, func() error { return crew.Pause(ctx, c.plan.idle) })
}

// late makes the remaining members join while all others listen, so that each new record is sent to everybody.
func (c *crowdNetwork) late(_ context.Context, r *crowdRun) error {
	watch := c.process.Watch()
	err := c.joinSome(&r.late, c.plan.late, true)
	u, failed := watch()
	switch {
	case err != nil:
		return err
	case failed != nil:
		return failed
	}
	for _, b := range u.Resident {
		r.lateHighest = max(r.lateHighest, int64(b))
	}
	if err := c.settled(); err != nil {
		return err
	}
	r.full, err = c.memory()
	return err
}

// change makes records change, one after the other.
func (c *crowdNetwork) change(_ context.Context, r *crowdRun) error {
	return c.measure(&r.change, func() error {
		return c.members.Call("Publish", c.plan.changes, &r.changes)
	})
}

// renew makes members renew their certificates.
func (c *crowdNetwork) renew(_ context.Context, r *crowdRun) error {
	return c.measure(&r.renew, func() error { return c.work(&r.renew, "Renew", c.plan.renewals) })
}

// expel expels members one by one. Each expulsion starts when the one before has reached every member and its
// consequences are done. The expelled members are not in the sample of the first members.
func (c *crowdNetwork) expel(ctx context.Context, r *crowdRun) error {
	return c.measure(&r.expel, func() error {
		for i := range c.plan.expelled {
			name := crowd.Name(c.plan.sample + i)
			var e crowd.Expelled
			if err := c.hub.Call("Expel", name, &e); err != nil {
				return err
			}
			var reached crowd.Reached
			if err := c.members.Call("Heard", e, &reached); err != nil {
				return err
			}
			r.expelled, r.reached = append(r.expelled, e), append(r.reached, reached)
			if err := crew.Pause(ctx, c.plan.rest); err != nil {
				return err
			}
		}
		return nil
	})
}

// look reads the members' final state.
func (c *crowdNetwork) look(_ context.Context, r *crowdRun) error {
	if err := c.settled(); err != nil {
		return err
	}
	return c.state(&r.hub, &r.members)
}
