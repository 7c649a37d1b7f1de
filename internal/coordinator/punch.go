package coordinator

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

const maxPunch = 1 << 10 // bytes

// passPunch tells a member that another wants it to knock. How often one may want that is bounded as all that
// a member says is; how much a member does for it is its own to decide.
func (c *Coordinator) passPunch(gate *gatekeeper, from string, data []byte) error {
	if len(data) > maxPunch {
		return fmt.Errorf("%d bytes are no request to knock", len(data))
	}
	var p enrol.Punch
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("the request to knock: %w", err)
	}
	if err := p.Check(); err != nil {
		return err
	}
	to, there := p.With, false
	gate.view(func(d *directory.Directory) {
		v, has := d.Get(to)
		there = has && v.Record.IsWaypoint()
	})
	there = there || c.claims.pending(to) // it is being tried whether it is one
	if !there || to == from {
		return fmt.Errorf("%.63q is no waypoint to knock from", to)
	}
	p.With = from
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("pass on the request to knock: %w", err)
	}
	e := c.engine.Load()
	if e == nil {
		return bus.ErrNotConnected
	}
	if err := e.link.Tell(to, enrol.TopicPunch, data); err != nil {
		return errors.New("it cannot be told now: try again")
	}
	return nil
}
