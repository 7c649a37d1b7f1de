package register

import (
	"net/netip"
	"slices"
)

// Each member has a /26 out of 10.0.0.0/8 (RFC 1918). Subnets are taken from one block after the other, each a /16. The
// first block is chosen at random, so that two collectives seldom use the same addresses on a host that is in both.
const (
	subnetBits = 26
	blockBits  = 16
)

var allSubnets = netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 8)

// pool finds free subnets.
type pool struct {
	blocks []netip.Prefix // new subnets are taken from these, in this order
	taken  prefixes
	lans   prefixes // of all members; avoided if possible, so that all members can reach each other
}

func newPool() *pool { return &pool{taken: newPrefixes(), lans: newPrefixes()} }

// take records the subnet of a member and its own networks.
func (p *pool) take(subnet netip.Prefix, lans []netip.Prefix) {
	p.taken.add(subnet)
	for _, lan := range lans {
		p.lans.add(lan)
	}
}

// release takes back what take has recorded.
func (p *pool) release(subnet netip.Prefix, lans []netip.Prefix) {
	p.taken.remove(subnet)
	for _, lan := range lans {
		p.lans.remove(lan)
	}
}

// pick finds a free subnet. If possible it overlaps neither the new member's own networks nor other members', else
// at least not its own, else it may overlap any. newBlock is valid if the subnet is from a new block. ok is false
// if all subnets are taken.
func (p *pool) pick(own []netip.Prefix, random func(n int) int) (subnet, newBlock netip.Prefix, ok bool) {
	mine := newPrefixes()
	for _, lan := range own {
		mine.add(lan)
	}
	for _, avoid := range [][]*prefixes{{&p.taken, &mine, &p.lans}, {&p.taken, &mine}, {&p.taken}} {
		for _, b := range p.blocks {
			if s, ok := firstFree(b, avoid); ok {
				return s, netip.Prefix{}, true
			}
		}
		const blocks = 1 << (blockBits - 8)
		first := random(blocks)
		for i := range blocks {
			b := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(first + i)}), blockBits)
			if s, ok := firstFree(b, avoid); ok {
				return s, b, true
			}
		}
	}
	return netip.Prefix{}, netip.Prefix{}, false
}

// firstFree finds a subnet of the block that overlaps none of the sets. The first set holds the taken subnets: as
// they are given in order, the search begins at their number.
func firstFree(block netip.Prefix, avoid []*prefixes) (netip.Prefix, bool) {
	const all = 1 << (subnetBits - blockBits)
	first := avoid[0].in[block]
	if first >= all {
		return netip.Prefix{}, false
	}
	for _, set := range avoid {
		if set.around(block) {
			return netip.Prefix{}, false
		}
	}
	a := block.Addr().As4()
	for i := range all {
		n := (first + i) % all
		a[2], a[3] = byte(n>>(subnetBits-24)), byte(n<<(32-subnetBits))
		s := netip.PrefixFrom(netip.AddrFrom4(a), subnetBits)
		if !slices.ContainsFunc(avoid, func(set *prefixes) bool { return set.overlap(s) }) {
			return s, true
		}
	}
	return netip.Prefix{}, false
}

// prefixes is a multiset of prefixes with a fast test for overlap.
type prefixes struct {
	all    map[netip.Prefix]int
	within map[netip.Prefix]int // smaller than a subnet, by the subnet around them
	in     map[netip.Prefix]int // number of subnets by block
}

func newPrefixes() prefixes {
	return prefixes{all: map[netip.Prefix]int{}, within: map[netip.Prefix]int{}, in: map[netip.Prefix]int{}}
}

func (s *prefixes) add(p netip.Prefix)    { s.count(p, 1) }
func (s *prefixes) remove(p netip.Prefix) { s.count(p, -1) }

func (s *prefixes) count(p netip.Prefix, by int) {
	if !p.IsValid() || !p.Addr().Is4() {
		return
	}
	p = p.Masked()
	switch bits := p.Bits(); {
	case bits > subnetBits:
		count(s.within, netip.PrefixFrom(p.Addr(), subnetBits).Masked(), by)
		return
	case bits == subnetBits:
		count(s.in, netip.PrefixFrom(p.Addr(), blockBits).Masked(), by)
	}
	count(s.all, p, by)
}

func count(m map[netip.Prefix]int, p netip.Prefix, by int) {
	if m[p] += by; m[p] <= 0 {
		delete(m, p)
	}
}

// around reports whether a member of the set contains all of p.
func (s *prefixes) around(p netip.Prefix) bool {
	for bits := p.Bits(); bits >= 0; bits-- {
		if s.all[netip.PrefixFrom(p.Addr(), bits).Masked()] > 0 {
			return true
		}
	}
	return false
}

// overlap reports whether a member of the set overlaps a subnet of subnetBits.
func (s *prefixes) overlap(subnet netip.Prefix) bool {
	return s.within[subnet] > 0 || s.around(subnet)
}

// usable returns the networks that a host reports and that subnets can avoid: those in the range of subnets.
func usable(lans []netip.Prefix) (out []netip.Prefix) {
	for _, p := range lans {
		if p.IsValid() && p.Addr().Is4() && p.Bits() > 0 && p.Overlaps(allSubnets) {
			out = append(out, p.Masked())
		}
	}
	return out[:min(len(out), maxLANs)]
}

// maxLANs bounds the networks recorded of one member.
const maxLANs = 16
