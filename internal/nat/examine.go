package nat

import (
	"context"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// maxAsked bounds how many members are asked.
const maxAsked = 4

// Observer is a member that can be asked where it sees this host.
type Observer struct {
	Member string
	At     netip.AddrPort
}

// Question is what an examination begins with. All of it is of one family of addresses.
type Question struct {
	Own       []netip.Addr // this host's addresses
	Port      uint16       // the port, as this host has it
	Observers []Observer   // members to ask, the preferred first
	// Third has a member that is at none of the addresses that were asked, and that nothing was sent to
	// lately, send requests with this id to where our port is seen; nil: there is none.
	Third func(ctx context.Context, asked []netip.Addr, outside netip.AddrPort, id stun.ID) error
}

// Examine gathers what there is to learn now: it asks members until two of them have seen this host at the same
// address. It takes as long as members that do not answer let it wait, some seconds each.
func (p *Prober) Examine(ctx context.Context, q Question) Evidence {
	e := Evidence{Own: q.Own, Port: q.Port}
	var asked []netip.Addr
	for _, o := range spread(q.Observers) {
		if len(asked) == maxAsked || agree(e.Sightings) || ctx.Err() != nil {
			break
		}
		at := o.At
		if slices.Contains(asked, at.Addr()) || slices.Contains(q.Own, at.Addr()) || tells(e.Sightings, o.Member) {
			continue
		}
		asked = append(asked, at.Addr())
		seen, err := p.Ask(ctx, at)
		if err != nil {
			p.log.Debug("a member was asked where it sees us", "at", at, "err", err)
			continue
		}
		e.Sightings = append(e.Sightings, Sighting{Member: o.Member, By: at, At: seen})
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

// Again asks the members of earlier sightings anew, and returns what those see that answer.
func (p *Prober) Again(ctx context.Context, earlier []Sighting) (now []Sighting) {
	for _, s := range earlier {
		if seen, err := p.Ask(ctx, s.By); err == nil {
			now = append(now, Sighting{Member: s.Member, By: s.By, At: seen})
		}
	}
	return now
}

// spread moves back those that are in the network (IPv4: /24, IPv6: /48) of one before them, or the same member:
// they are more likely to be in one hand.
func spread(all []Observer) []Observer {
	var first, rest []Observer
	for _, o := range all {
		like := func(x Observer) bool {
			return x.Member == o.Member || network(x.At.Addr()) == network(o.At.Addr())
		}
		if slices.ContainsFunc(first, like) {
			rest = append(rest, o)
		} else {
			first = append(first, o)
		}
	}
	return append(first, rest...)
}

func network(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	bits := 24
	if a.Is6() {
		bits = 48
	}
	p, _ := a.Prefix(bits) // never fails for a valid address
	return p
}

// agree reports whether two members have seen this host at the same address.
func agree(all []Sighting) bool {
	for i, s := range all {
		if slices.ContainsFunc(all[:i], func(o Sighting) bool { return o.Member != s.Member && o.At.Addr() == s.At.Addr() }) {
			return true
		}
	}
	return false
}

func tells(all []Sighting, member string) bool {
	return slices.ContainsFunc(all, func(s Sighting) bool { return s.Member == member })
}
