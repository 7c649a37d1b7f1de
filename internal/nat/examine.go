package nat

import (
	"context"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// maxAsked bounds how many members are asked.
const maxAsked = 4

// Question is what an examination begins with. All of it is of one family of addresses.
type Question struct {
	Own       []netip.Addr     // this host's addresses
	Port      uint16           // the port, as this host has it
	Observers []netip.AddrPort // members to ask, the preferred first
	// Third has a member that is at none of the addresses that were asked, and that nothing was sent to
	// lately, send requests with this id to where our port is seen; nil: there is none.
	Third func(ctx context.Context, asked []netip.Addr, outside netip.AddrPort, id stun.ID) error
}

// Examine gathers what there is to learn now. It takes as long as members that do not answer let it wait,
// some seconds each.
func (p *Prober) Examine(ctx context.Context, q Question) Evidence {
	e := Evidence{Own: q.Own, Port: q.Port}
	var asked []netip.Addr
	for _, at := range q.Observers {
		if len(asked) == maxAsked || len(e.Sightings) == 2 || ctx.Err() != nil {
			break
		}
		if slices.Contains(asked, at.Addr()) || slices.Contains(q.Own, at.Addr()) {
			continue
		}
		asked = append(asked, at.Addr())
		seen, err := p.Ask(ctx, at)
		if err != nil {
			p.log.Debug("a member was asked where it sees us", "at", at, "err", err)
			continue
		}
		e.Sightings = append(e.Sightings, Sighting{By: at, At: seen})
		if len(e.Sightings) > 1 {
			continue
		}
		// Before others are asked: they are no strangers any more then.
		if e.FromOtherPort, err = p.FromOtherPort(ctx, at); err != nil {
			p.log.Debug("whether other ports get in was not tried", "at", at, "err", err)
		}
		if q.Third == nil {
			continue
		}
		e.FromOtherAddress, err = p.FromOther(ctx, func(ctx context.Context, id stun.ID) error { return q.Third(ctx, asked, seen, id) })
		if err != nil {
			p.log.Debug("whether others get in was not tried", "err", err)
		}
	}
	e.Asked = len(asked)
	return e
}
