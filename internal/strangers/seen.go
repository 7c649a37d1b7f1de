package strangers

import (
	"net/netip"
	"slices"
	"sync"
)

// perMember bounds the addresses of one member, so that none can displace those of others.
const perMember = 4

// Seen remembers the addresses where members were seen.
type Seen struct {
	mu      sync.Mutex
	members map[string][]netip.Prefix // the latest one last
	sources map[netip.Prefix]int      // number of members seen there
}

// NewSeen returns an empty Seen.
func NewSeen() *Seen {
	return &Seen{members: map[string][]netip.Prefix{}, sources: map[netip.Prefix]int{}}
}

func (s *Seen) has(at netip.Prefix) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sources[at] > 0
}

func (s *Seen) add(member string, at netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.members[member]
	if i := slices.Index(list, at); i >= 0 {
		list = slices.Delete(list, i, i+1)
	} else {
		s.sources[at]++
	}
	if len(list) == perMember {
		if s.sources[list[0]]--; s.sources[list[0]] == 0 {
			delete(s.sources, list[0])
		}
		list = slices.Delete(list, 0, 1)
	}
	s.members[member] = append(list, at)
}

// Keep forgets hosts that are not members any more.
func (s *Seen) Keep(isMember func(name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for member, list := range s.members {
		if isMember(member) {
			continue
		}
		for _, at := range list {
			if s.sources[at]--; s.sources[at] == 0 {
				delete(s.sources, at)
			}
		}
		delete(s.members, member)
	}
}
