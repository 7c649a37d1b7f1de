package vpn

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// ErrNoAddress says that every subnet a waypoint may use is full, or in use already where the
// member is.
var ErrNoAddress = errors.New("no tunnel address is free: every private subnet overlaps a network in use, or is full")

// Assignment is what a member's end of a tunnel is called.
type Assignment struct {
	// Addresses has one of each address family, with its subnet's length; none of a family that has
	// no subnet free of conflicts.
	Addresses []netip.Prefix
}

// Expired is an assignment whose time is over.
type Expired struct {
	Holder     string
	Assignment Assignment
}

// Pool is the addresses that a waypoint gives to the members it has tunnels with. Members of
// several waypoints are in several pools, so each waypoint's subnets follow from its name. Not for
// concurrent use.
type Pool struct {
	name    string
	inUse   []netip.Prefix
	holders map[string]holding
	taken   map[netip.Addr]bool
}

type holding struct {
	assignment Assignment
	until      time.Time
}

// NewPool makes the pool of a waypoint. inUse are the networks that the waypoint itself is in, or
// routes: none of its subnets overlaps them.
func NewPool(waypoint string, inUse ...netip.Prefix) *Pool {
	return &Pool{name: waypoint, inUse: inUse, holders: make(map[string]holding), taken: make(map[netip.Addr]bool)}
}

// Take gives a holder its addresses until a time, or lengthens the time. It keeps those it has,
// unless they overlap avoid, what is in use where the holder is. Addresses follow from the holder's
// name, so that a waypoint that starts again gives the same ones where it can.
func (p *Pool) Take(holder string, avoid []netip.Prefix, until time.Time) (Assignment, error) {
	var next Assignment
	held := p.holders[holder].assignment
	for _, f := range families {
		if a, ok := p.address(f, holder, held, avoid); ok {
			next.Addresses = append(next.Addresses, a)
		}
	}
	if len(next.Addresses) == 0 {
		return Assignment{}, ErrNoAddress
	}
	p.free(held)
	for _, a := range next.Addresses {
		p.taken[a.Addr()] = true
	}
	p.holders[holder] = holding{assignment: next, until: until}
	return next.clone(), nil
}

// address is the one that a holder has in a family, or else a free one.
func (p *Pool) address(f family, holder string, held Assignment, avoid []netip.Prefix) (netip.Prefix, bool) {
	for _, a := range held.Addresses {
		if f.has(a.Addr()) && !overlaps(a, avoid) {
			return a, true
		}
	}
	for subnet := range f.subnets(p.name) {
		if overlaps(subnet, p.inUse) || overlaps(subnet, avoid) {
			continue
		}
		for a := range hosts(subnet, holder) {
			if !p.taken[a] {
				return netip.PrefixFrom(a, subnet.Bits()), true
			}
		}
	}
	return netip.Prefix{}, false
}

// Expire takes back what is not held any longer, and tells what that was.
func (p *Pool) Expire(now time.Time) []Expired {
	var expired []Expired
	for holder, h := range p.holders {
		if !now.Before(h.until) {
			expired = append(expired, Expired{Holder: holder, Assignment: h.assignment})
			p.Release(holder)
		}
	}
	slices.SortFunc(expired, func(a, b Expired) int { return cmp.Compare(a.Holder, b.Holder) })
	return expired
}

// Release takes back what a holder has.
func (p *Pool) Release(holder string) {
	p.free(p.holders[holder].assignment)
	delete(p.holders, holder)
}

func (p *Pool) free(a Assignment) {
	for _, prefix := range a.Addresses {
		delete(p.taken, prefix.Addr())
	}
}

// Gateways are the waypoint's own addresses, the first of each subnet in use with the subnet's
// length. The subnets that it gives from when nobody avoids them are always among these, first.
func (p *Pool) Gateways() []netip.Prefix {
	var gateways []netip.Prefix
	for _, f := range families {
		for subnet := range f.subnets(p.name) {
			if !overlaps(subnet, p.inUse) {
				gateways = append(gateways, gateway(subnet))
				break
			}
		}
	}
	others := make(map[netip.Prefix]bool)
	for _, h := range p.holders {
		for _, a := range h.assignment.Addresses {
			if g := gateway(a.Masked()); !slices.Contains(gateways, g) {
				others[g] = true
			}
		}
	}
	return slices.AppendSeq(gateways, slices.Values(slices.SortedFunc(maps.Keys(others), netip.Prefix.Compare)))
}

func gateway(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
}

func (a Assignment) clone() Assignment { return Assignment{Addresses: slices.Clone(a.Addresses)} }

func overlaps(p netip.Prefix, others []netip.Prefix) bool {
	return slices.ContainsFunc(others, p.Overlaps)
}
