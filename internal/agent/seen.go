package agent

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// seen is where others see this host, put together from whoever knows, for the waypoint's egress policy: a
// router's own pages are at that address. It may be told from any goroutine.
type seen struct {
	named []netip.Addr               // by the operator
	way   func() (netip.Addr, error) // the address that packets to the Internet leave from, in IPv4
	news  chan egress.Outside        // the newest; the waypoint takes it

	mu        sync.Mutex
	own       []netip.Addr
	sightings []nat.Sighting // the last that there were in this network
	opened    []netip.AddrPort
	told      bool
	last      egress.Outside
}

func newSeen(named []netip.Addr, way func() (netip.Addr, error)) *seen {
	s := &seen{named: named, way: way, news: make(chan egress.Outside, 1)}
	s.update(func() {})
	return s
}

// has is told the host's addresses.
func (s *seen) has(own []netip.Addr) { s.update(func() { s.own = own }) }

// moved is told that the host is in another network: what was seen of it before counts no more.
func (s *seen) moved() { s.update(func() { s.sightings, s.opened = nil, nil }) }

// examined is told what members have seen. Where none has answered, what they saw before counts.
func (s *seen) examined(sightings []nat.Sighting) {
	if len(sightings) > 0 {
		s.update(func() { s.sightings = sightings })
	}
}

// routed is told what the router has opened.
func (s *seen) routed(state portmap.State) {
	var opened []netip.AddrPort
	for _, m := range state.Mappings {
		opened = append(opened, m.External)
	}
	s.update(func() { s.opened = opened })
}

// update changes what is known, and tells the waypoint if that makes a difference.
func (s *seen) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	now := s.outside()
	if s.told && now.Equal(s.last) {
		return
	}
	s.told, s.last = true, now
	select {
	case <-s.news: // an older one that was not taken yet
	default:
	}
	s.news <- now
}

func (s *seen) outside() egress.Outside {
	named := make([]netip.AddrPort, len(s.named))
	for i, a := range s.named {
		named[i] = netip.AddrPortFrom(a, 0)
	}
	o := egress.Outside{NATs: nat.Addresses(s.sightings, slices.Concat(named, s.opened), s.own)}
	if from, err := s.way(); err == nil && len(o.NATs) == 0 {
		o.Hidden = nat.IsPrivate(from)
	}
	return o
}

// hidden reports whether nobody could tell where others see this host.
func (s *seen) hidden() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.Hidden
}
