package coordinator

import (
	"net/netip"
	"slices"
)

// Members' subnets of the collective's network: /26 out of 10.0.0.0/8 (RFC 1918), block by block, each a
// /16. The first block is taken by chance, so that two collectives seldom meet, and a host with both hardly
// ever sees one address twice.
const (
	subnetBits = 26
	blockBits  = 16
)

var allSubnets = netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 8)

// pool says which subnet is free. It does no I/O; chance is given to it.
type pool struct {
	blocks []netip.Prefix // from which subnets are given, in this order
	taken  prefixes
	lans   prefixes // of all members: better avoided, so that everybody can reach everybody
}

func newPool() *pool { return &pool{taken: newPrefixes(), lans: newPrefixes()} }

// pick finds a free subnet, which overlaps none of the joiner's own networks if that is possible, and none
// of other members' if that is possible too. It may need a new block. ok is false if all are taken.
func (p *pool) pick(own []netip.Prefix, random func(n int) int) (subnet netip.Prefix, newBlock netip.Prefix, ok bool) {
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

// firstFree finds what overlaps none of the sets, of which the first is what is taken. It begins where the
// first free one is if none was ever given back.
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

// prefixes is a set that knows quickly whether any of it overlaps a subnet. A prefix may be in it several
// times.
type prefixes struct {
	all    map[netip.Prefix]int
	within map[netip.Prefix]int // by the subnet that they are a part of
	in     map[netip.Prefix]int // how many subnets, by their block
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

// around says whether one of the set has all of a prefix in it.
func (s *prefixes) around(p netip.Prefix) bool {
	for bits := p.Bits(); bits >= 0; bits-- {
		if s.all[netip.PrefixFrom(p.Addr(), bits).Masked()] > 0 {
			return true
		}
	}
	return false
}

// overlap says whether any of the set overlaps a subnet of subnetBits.
func (s *prefixes) overlap(subnet netip.Prefix) bool {
	return s.within[subnet] > 0 || s.around(subnet)
}

// usable leaves out of what a host says of its networks what can be no LAN, or would be all addresses.
func usable(lans []netip.Prefix) (out []netip.Prefix) {
	for _, p := range lans {
		if p.IsValid() && p.Addr().Is4() && p.Bits() > 0 && p.Overlaps(allSubnets) {
			out = append(out, p.Masked())
		}
	}
	return out[:min(len(out), maxLANs)]
}

// maxLANs is how many networks of a member are remembered.
const maxLANs = 16
