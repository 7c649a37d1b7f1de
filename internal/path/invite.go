package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file lets bulk connections follow invitations. A loaded waypoint states the rate that one more member would
// get. If a detour of a connection carries clearly less, the connection challenges the detour with the waypoint
// (challenge.go). So where all waypoints of a collective are full, all members get about the same. The statement is
// only a reason to try the waypoint. The challenge decides. If the waypoint gave less than it stated, this host's
// connections to that network of servers do not believe it for a while, each time for twice as long.

const (
	// acceptsOneIn makes one in 4 of the invited connections come each time, so that not all come at once.
	acceptsOneIn = 4
	// doubtedFor is the time for which a waypoint that gave less than it stated is not believed. It doubles each time,
	// up to doubtedMost. The waypoint may have invited others at the same time.
	doubtedFor  = 30 * time.Second
	doubtedMost = 2 * time.Hour
)

// inviting returns the waypoint that states the highest rate, and the connection's poorest detour, if exchanging that
// would gain clearly. Otherwise who is empty.
func (m *Manager) inviting(t turn, ready []readySubflow, sum float64) (who string, poorest readySubflow) {
	i := slices.IndexFunc(ready, func(s readySubflow) bool { return s.addsNothing() || t.presses(s.subflow) })
	if i < 0 {
		return "", poorest
	}
	poorest = ready[i]
	most := max(policy.SameFactor*poorest.rate, poorest.rate+(tryoutGain-1)*sum)
	for o := range m.unused(t) {
		is := m.detours.loads[viaOf(&o.Detour)]
		if is.until.After(t.now) && is.gives > most && !o.Kind.Own() && m.detours.history.believes(o.Waypoint, t.server, t.now) {
			who, most = o.Waypoint, is.gives
		}
	}
	return who, poorest
}

// accepts decides at random whether the connection follows an invitation now.
func (m *Manager) accepts(t turn, waypoint string) bool {
	return m.views.drawAt(t.token, waypoint, t.now)%acceptsOneIn == 0
}

// believes reports whether a waypoint's statement is believed.
func (h history) believes(waypoint string, server netip.AddrPort, now time.Time) bool {
	r, _ := h.of(waypoint, server)
	doubts := doubled(doubtedFor, r.doubts-1, doubtedMost)
	return !r.isShunned(now) && !within(r.doubted, now, doubts)
}

// disappoints records that a waypoint gave less than it stated.
func (h history) disappoints(waypoint string, server netip.AddrPort, now time.Time) {
	key := trailOf(waypoint, server)
	if r, known := h[key]; known {
		r.doubts, r.doubted = r.doubts+1, now
		h[key] = r
	}
}
