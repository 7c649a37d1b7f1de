package nat

import (
	"context"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// maxAsked bounds the members that are asked.
const maxAsked = 4

// Observer is a member that can report this host's external address.
type Observer struct {
	Member string
	At     netip.AddrPort
}

// Question is the input of an examination, for one address family.
type Question struct {
	Own       []netip.Addr // this host's addresses
	Port      uint16       // the local port
	Observers []Observer   // members to ask, the preferred first
	// Third asks a member to send requests with this id to outside, where our port is seen. The
	// member must be at none of the addresses asked, and nothing may have been sent to it recently.
	// Third is nil if there is no such member.
	Third func(ctx context.Context, asked []netip.Addr, outside netip.AddrPort, id stun.ID) error
}

// Examine collects evidence. It asks members until two of them have seen this host at the same
// address. Each member that does not answer costs some seconds.
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
			p.log.Debug("a member was asked at which address it sees this host", "at", at, "err", err)
			continue
		}
		e.Sightings = append(e.Sightings, Sighting{Member: o.Member, By: at, At: seen})
		if len(e.Sightings) > 1 {
			continue
		}
		// This comes before others are asked, because they are not strangers afterwards.
		if e.FromOtherPort, err = p.FromOtherPort(ctx, at); err != nil {
			p.log.Debug("the NAT's treatment of other ports was not tested", "at", at, "err", err)
		}
		if q.Third == nil {
			continue
		}
		e.FromOtherAddress, err = p.FromOther(ctx, func(ctx context.Context, id stun.ID) error { return q.Third(ctx, asked, seen, id) })
		if err != nil {
			p.log.Debug("the NAT's treatment of strangers was not tested", "err", err)
		}
	}
	e.Asked = len(asked)
	return e
}

// Again asks the members of earlier sightings again, and returns the new sightings of those that
// answer.
func (p *Prober) Again(ctx context.Context, earlier []Sighting) (now []Sighting) {
	for _, s := range earlier {
		if seen, err := p.Ask(ctx, s.By); err == nil {
			now = append(now, Sighting{Member: s.Member, By: s.By, At: seen})
		}
	}
	return now
}

// spread moves back observers that share a network (IPv4: /24, IPv6: /48) or a member with an
// earlier one, because they are more likely to have the same owner.
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
