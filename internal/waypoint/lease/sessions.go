package lease

import (
	"net/netip"

	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// Caller is a member at the address from which it has a session.
type Caller struct {
	Member *Member
	Addr   netip.Addr
}

// session is a member's session, and its present address.
type session struct {
	Caller
	by *attribution.Session // with the member's signature; nil if it has signed nothing
}

// sessions knows the members' sessions.
type sessions struct {
	live map[uint64]session // by id
	of   map[Caller]int
}

func newSessions() *sessions {
	return &sessions{live: make(map[uint64]session), of: make(map[Caller]int)}
}

func (s *sessions) add(id uint64, x session) {
	s.live[id] = x
	s.of[x.Caller]++
	x.Member.Sessions++
}

// remove returns the session as it was last; ok is false if it is not known.
func (s *sessions) remove(id uint64) (x session, ok bool) {
	if x, ok = s.live[id]; !ok {
		return session{}, false
	}
	delete(s.live, id)
	if s.of[x.Caller]--; s.of[x.Caller] == 0 {
		delete(s.of, x.Caller)
	}
	x.Member.Sessions--
	return x, true
}
