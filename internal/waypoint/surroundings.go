package waypoint

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// listenersAge is the time for which the list of listening ports is used. A program that begins to listen
// on a port where a member has a mapping misses only connections from that member.
const listenersAge = time.Second

// surroundings has this host's addresses and links, its external addresses, and the ports of its programs. Its owner calls
// look when they may have changed.
type surroundings struct {
	own       func() ([]netstate.Address, error)
	onLink    func() ([]netip.Prefix, error)
	listeners func() ([]netip.AddrPort, error)
	reserved  netstate.Ports
	log       *slog.Logger

	policy *egress.Policy // with the present addresses and links
	known  bool           // now has been read
	now    egress.Surroundings

	listening map[uint16]bool // ports that programs listen on
	listed    time.Time
}

// look reads addresses and links, and reports whether they have changed. If they cannot be read, nothing changes.
func (s *surroundings) look() (changed bool, err error) {
	list, err := s.own()
	if err != nil {
		return false, err
	}
	links, err := s.onLink()
	if err != nil {
		return false, err
	}
	own := make([]netip.Addr, len(list))
	for i, a := range list {
		own[i] = a.Addr
	}
	if s.known && slices.Equal(own, s.now.Own) && slices.Equal(links, s.now.OnLink) {
		return false, nil
	}
	s.known, s.now.Own, s.now.OnLink = true, own, links
	s.policy = s.policy.Around(s.now)
	return true, nil
}

// hear records the host's external addresses, and reports whether they have changed.
func (s *surroundings) hear(o egress.Outside) (changed bool) {
	if o.Equal(s.now.Outside) {
		return false
	}
	s.now.Outside = o
	s.policy = s.policy.Around(s.now)
	return true
}

// replace replaces the policy.
func (s *surroundings) replace(policy *egress.Policy) { s.policy = policy.Around(s.now) }

// taken reports whether a program of this host listens on a port, or the port is reserved for one (sysctl
// ip_local_reserved_ports).
func (s *surroundings) taken(port uint16) bool { return s.listening[port] || s.reserved.Has(port) }

// refreshListeners reads the list anew if it is old. If that fails, the old one is used.
func (s *surroundings) refreshListeners(now time.Time) {
	if s.listening != nil && now.Sub(s.listed) < listenersAge {
		return
	}
	list, err := s.listeners()
	if err != nil {
		s.log.Warn("cannot list the ports on which programs listen", "err", err)
		return
	}
	ports := make(map[uint16]bool, len(list))
	for _, a := range list {
		if !a.Addr().IsLoopback() { // others cannot reach those
			ports[a.Port()] = true
		}
	}
	s.listening, s.listed = ports, now
}
