package path

import (
	"net/netip"
	"slices"
	"time"
)

// This file has bulk connections follow invitations of loaded waypoints. A loaded waypoint reports the rate that one more member would
// get. If a detour of a connection carries clearly less, the connection challenges that detour with the waypoint. So where all waypoints of a
// collective are full, members get about the same. The report is only a reason to try the waypoint, and the challenge decides. A waypoint
// that gave less than it reported is not believed for a while by this host's connections to that network, each time for twice as long.

const (
	// Of the connections that a waypoint invites, one in acceptsOneIn comes each time, so that not all come at once.
	acceptsOneIn = 4
	// A waypoint that did not keep its word is not believed for doubtedFor, which doubles each time, up to doubtedMost. It has perhaps
	// invited others at the same time.
	doubtedFor  = 30 * time.Second
	doubtedMost = 2 * time.Hour
)

// inviting returns the waypoint that says that it gives most, and the connection's poorest detour, if the exchange would bring clearly
// more. The name is empty if there is none.
func (m *Manager) inviting(t turn, ready []readySubflow, sum float64) (who string, poorest readySubflow) {
	i := slices.IndexFunc(ready, func(s readySubflow) bool { return s.addsNothing() || t.presses(s.subflow) })
	if i < 0 {
		return "", poorest
	}
	poorest = ready[i]
	most := max(sameFactor*poorest.rate, poorest.rate+(tryoutGain-1)*sum)
	for o := range m.unused(t) {
		is := m.detours.loads[o.via()]
		if is.until.After(t.now) && is.gives > most && !o.Kind.own() && m.detours.history.believes(o.Waypoint, t.server, t.now) {
			who, most = o.Waypoint, is.gives
		}
	}
	return who, poorest
}

// accepts draws lots whether the connection follows an invitation now.
func (m *Manager) accepts(t turn, waypoint string) bool {
	return m.views.drawAt(t.token, waypoint, t.now)%acceptsOneIn == 0
}

// believes reports whether a waypoint gave what it said, as far as this host knows.
func (h history) believes(waypoint string, server netip.AddrPort, now time.Time) bool {
	r, _ := h.of(waypoint, server)
	doubts := min(doubtedFor<<min(max(r.doubts-1, 0), 10), doubtedMost)
	return !r.isShunned(now) && !within(r.doubted, now, doubts)
}

// disappoints records that a waypoint did not give what it said.
func (h history) disappoints(waypoint string, server netip.AddrPort, now time.Time) {
	key := trail{waypoint, prefixOf(server.Addr())}
	if r, known := h[key]; known {
		r.doubts, r.doubted = r.doubts+1, now
		h[key] = r
	}
}
