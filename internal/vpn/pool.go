package vpn

import (
	"errors"
	"net/netip"
	"slices"
)

// ErrNoAddress means that a waypoint has no address for a member.
var ErrNoAddress = errors.New("no tunnel address is free: all addresses in the waypoint's tunnel_ranges are assigned, or overlap with networks in use at either end; in-band and mapped detours need none")

// maxDeclined is the number of addresses that a member may decline, by naming networks in use at its place, before it
// gets none of that family. This keeps it from steering the waypoint to an address of its choice.
const maxDeclined = 4

// Pool chooses the addresses that a waypoint gives to its members. They come from one subnet of
// each range, derived from the waypoint's seed. So two waypoints seldom use the same subnet, and
// members cannot choose. Not safe for concurrent use.
type Pool struct {
	seed    [32]byte
	ranges  []netip.Prefix
	used    usage // on the waypoint's host
	subnets []netip.Prefix
	taken   map[netip.Addr]bool
}

// NewPool returns the pool of a waypoint. The seed is a secret of the waypoint that survives
// restarts. ranges are blocks of private addresses, at most one of each family. used are the
// networks that the waypoint itself is in or has routes to.
func NewPool(seed [32]byte, ranges, used []netip.Prefix) *Pool {
	p := &Pool{seed: seed, ranges: ranges, taken: make(map[netip.Addr]bool)}
	p.Avoid(used)
	return p
}

// Avoid replaces the networks in use on the waypoint's host. Taken addresses stay taken until
// released; Conflicts reports which must be released.
func (p *Pool) Avoid(used []netip.Prefix) {
	p.used = usageOf(used, p.ranges)
	p.subnets = nil
	for _, block := range p.ranges {
		if s, ok := subnetOf(p.seed, block, p.used); ok {
			p.subnets = append(p.subnets, s)
		}
	}
}

// Conflicts reports whether an address is now in use on the waypoint's host.
func (p *Pool) Conflicts(a netip.Addr) bool { return p.used.has(a) }

// Choose returns addresses for a holder, with their subnets' length: one of each family that has a free address. It
// keeps the addresses in has, unless they are now in use at the waypoint or overlap declined, the networks in use at
// the holder. Addresses are derived from the seed and the holder's name, so that a restarted waypoint gives the same
// ones where possible. Choose does not mark them as taken.
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

// Take marks addresses as taken.
func (p *Pool) Take(addrs ...netip.Addr) {
	for _, a := range addrs {
		p.taken[a] = true
	}
}

// Release marks addresses as free.
func (p *Pool) Release(addrs ...netip.Addr) {
	for _, a := range addrs {
		delete(p.taken, a)
	}
}

// Unusable returns the ranges that have no address to give, because this host uses nearly all of
// them.
func (p *Pool) Unusable() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(p.ranges), func(block netip.Prefix) bool { return slices.ContainsFunc(p.subnets, block.Overlaps) })
}

// Gateways returns the waypoint's own addresses, one in each subnet from which it now gives
// addresses. They are without the subnet's length.
func (p *Pool) Gateways() []netip.Prefix {
	var list []netip.Prefix
	for _, s := range p.subnets {
		list = append(list, gateway(s))
	}
	return list
}
