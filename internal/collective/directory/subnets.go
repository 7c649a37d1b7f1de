package directory

import (
	"net/netip"
	"slices"
)

// subnets holds the members' subnets, sorted by address. They do not overlap each other, so those that overlap a given
// prefix are adjacent.
type subnets []subnet

type subnet struct {
	prefix netip.Prefix
	name   string
}

func (s subnets) search(a netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(s, a, func(have subnet, a netip.Addr) int { return have.prefix.Addr().Compare(a) })
}

// overlapping returns the names of other members whose subnet overlaps p.
func (s subnets) overlapping(p netip.Prefix, name string) (others []string) {
	if !p.IsValid() {
		return nil
	}
	i, _ := s.search(p.Addr())
	if i > 0 {
		i-- // it may begin before p and overlap it
	}
	for ; i < len(s) && (s[i].prefix.Addr().Less(p.Addr()) || s[i].prefix.Overlaps(p)); i++ {
		if s[i].prefix.Overlaps(p) && s[i].name != name {
			others = append(others, s[i].name)
		}
	}
	return others
}

// add adds a subnet that overlaps no other. It ignores an invalid prefix.
func (s *subnets) add(p netip.Prefix, name string) {
	if p.IsValid() {
		i, _ := s.search(p.Addr())
		*s = slices.Insert(*s, i, subnet{p, name})
	}
}

func (s *subnets) remove(p netip.Prefix) {
	if i, ok := s.search(p.Addr()); p.IsValid() && ok {
		*s = slices.Delete(*s, i, i+1)
	}
}
