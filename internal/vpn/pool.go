package vpn

import (
	"errors"
	"net/netip"
	"slices"
)

// ErrNoAddress says that a waypoint has no address for a member.
var ErrNoAddress = errors.New("no tunnel address is free: all that the waypoint may give (tunnel_ranges) are taken, or overlap networks in use at the waypoint or where the member is; in-band and mapped detours need none")

// maxDeclined is how many addresses a member may decline, by naming networks in
// use where it is, before it gets none of that family. So it cannot steer the
// waypoint to one that it would like to have.
const maxDeclined = 4

// Pool decides which addresses a waypoint gives to the members it has tunnels
// with. They come from one subnet of each range, which follows from the
// waypoint's seed: so two waypoints seldom have the same, and members cannot
// choose. Not for concurrent use.
type Pool struct {
	seed    [32]byte
	ranges  []netip.Prefix
	used    usage // on the waypoint's host
	subnets []netip.Prefix
	taken   map[netip.Addr]bool
}

// NewPool returns the pool of a waypoint. The seed is a secret of the waypoint
// that outlives restarts; ranges are blocks of private addresses, at most one of
// each family; used are the networks that the waypoint itself is in, or routes.
func NewPool(seed [32]byte, ranges, used []netip.Prefix) *Pool {
	p := &Pool{seed: seed, ranges: ranges, taken: make(map[netip.Addr]bool)}
	p.Avoid(used)
	return p
}

// Avoid replaces the networks that are in use on the waypoint's host. Addresses
// that were taken stay so until they are released; Conflicts reports which of
// them must be.
func (p *Pool) Avoid(used []netip.Prefix) {
	p.used = usageOf(used, p.ranges)
	p.subnets = nil
	for _, block := range p.ranges {
		if s, ok := subnetOf(p.seed, block, p.used); ok {
			p.subnets = append(p.subnets, s)
		}
	}
}

// Conflicts reports whether an address is in use on the waypoint's host by now.
func (p *Pool) Conflicts(a netip.Addr) bool { return p.used.has(a) }

// Choose returns addresses for a holder, one of each family that has one for it,
// with their subnets' length. It keeps those that the holder has, unless they are
// in use by now at the waypoint or in declined, the networks in use where the
// holder is. Addresses follow from the seed and the holder's name, so that a
// waypoint that starts again gives the same ones where it can. Nothing is taken.
func (p *Pool) Choose(holder string, has, declined []netip.Prefix) ([]netip.Prefix, error) {
	var chosen []netip.Prefix
	for _, block := range p.ranges {
		if a, ok := p.choose(block, holder, has, declined); ok {
			chosen = append(chosen, a)
		}
	}
	if len(chosen) == 0 {
		return nil, ErrNoAddress
	}
	return chosen, nil
}

func (p *Pool) choose(block netip.Prefix, holder string, has, declined []netip.Prefix) (netip.Prefix, bool) {
	for _, a := range has {
		if block.Contains(a.Addr()) && !p.used.has(a.Addr()) && !contained(a.Addr(), declined) {
			return a, true
		}
	}
	i := slices.IndexFunc(p.subnets, block.Overlaps)
	if i < 0 {
		return netip.Prefix{}, false
	}
	left := maxDeclined
	for a := range hosts(p.subnets[i], p.seed, holder) {
		if p.taken[a] || p.used.has(a) {
			continue
		}
		if !contained(a, declined) {
			return netip.PrefixFrom(a, p.subnets[i].Bits()), true
		}
		if left--; left == 0 {
			break
		}
	}
	return netip.Prefix{}, false
}

// Take marks addresses as given.
func (p *Pool) Take(addrs ...netip.Addr) {
	for _, a := range addrs {
		p.taken[a] = true
	}
}

// Release takes addresses back.
func (p *Pool) Release(addrs ...netip.Addr) {
	for _, a := range addrs {
		delete(p.taken, a)
	}
}

// Unusable lists the ranges that no address is given from, as this host uses
// nearly all of them.
func (p *Pool) Unusable() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(p.ranges), func(block netip.Prefix) bool { return slices.ContainsFunc(p.subnets, block.Overlaps) })
}

// Gateways are the waypoint's own addresses, one in each subnet that it gives
// from now. Each stands alone, without its subnet.
func (p *Pool) Gateways() []netip.Prefix {
	var list []netip.Prefix
	for _, s := range p.subnets {
		list = append(list, gateway(s))
	}
	return list
}
