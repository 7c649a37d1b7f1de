package outside

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// seen collects the addresses at which others see this host, for the waypoint's egress policy: the router's own services may
// be at these addresses. Every reported address counts until the host moves to another network. So a lying member can cause
// other addresses to be denied, but cannot open any. Its methods may be called from any goroutine.
type seen struct {
	named   []netip.Addr               // by the operator
	trusted func(member string) bool   // reports whether a member's report alone is sufficient
	way     func() (netip.Addr, error) // the IPv4 source address of packets to the Internet
	news    chan egress.Outside        // the newest; the waypoint takes it

	mu        sync.Mutex
	own       []netip.Addr
	witnesses nat.Witnesses
	router    []netip.Addr // public addresses at which the router has opened ports, the newest last
	routers   []netip.Addr // on the way to the Internet in IPv6, the newest last
	told      bool
	last      egress.Outside
}

func newSeen(named []netip.Addr, trusted func(string) bool, way func() (netip.Addr, error)) *seen {
	s := &seen{named: named, trusted: trusted, way: way, news: make(chan egress.Outside, 1)}
	s.update(func() {})
	return s
}

// has records the host's addresses.
func (s *seen) has(own []netip.Addr) { s.update(func() { s.own = own }) }

// moved forgets all reports, because the host is in another network.
func (s *seen) moved() {
	s.update(func() { s.witnesses, s.router, s.routers = nat.Witnesses{}, nil, nil })
}

// seenBy records where members have seen the host.
func (s *seen) seenBy(sightings ...nat.Sighting) {
	s.update(func() {
		for _, x := range sightings {
			s.witnesses.Hear(x.Member, x.At.Addr())
		}
	})
}

// routed records the ports that the router has opened.
func (s *seen) routed(state portmap.State) {
	s.update(func() {
		for _, m := range state.Mappings {
			if len(nat.Addresses([]netip.Addr{m.External.Addr()}, nil)) > 0 {
				s.router = nat.Newest(s.router, m.External.Addr().Unmap())
			}
		}
	})
}

// passed records the routers that IPv6 packets to the Internet pass.
func (s *seen) passed(routers []netip.Addr) {
	s.update(func() {
		for _, r := range routers {
			s.routers = nat.Newest(s.routers, r)
		}
	})
}

// update applies change, and sends the news to the waypoint if the addresses outside have changed.
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
	o := egress.Outside{
		NATs: nat.Addresses(slices.Concat(s.named, s.router, s.witnesses.Told()), s.own), Routers: slices.SortedFunc(slices.Values(s.routers), netip.Addr.Compare),
	}
	certain := len(nat.Addresses(s.named, nil)) > 0 || len(s.router) > 0 || s.witnesses.Sure(s.trusted)
	if from, err := s.way(); err == nil && !certain {
		o.Hidden = nat.IsPrivate(from)
	}
	return o
}

// hidden reports whether this host's external address is uncertain, and whether a member has reported one all the same.
func (s *seen) hidden() (hidden, told bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.Hidden, len(s.last.NATs) > 0
}
