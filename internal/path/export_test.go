package path

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// BelievedAfter is the time after which a waypoint's statements are believed again.
const BelievedAfter = believedAfter

// Sound returns what contradicts itself in the Manager's state, or nil.
func (m *Manager) Sound() error {
	tracked, due := 0, 0
	for server, conns := range m.conns.byServer {
		if len(conns) == 0 {
			return fmt.Errorf("an empty entry for server %v", server)
		}
		tracked += len(conns)
		for token, c := range conns {
			if m.conns.byToken[token] != c || c.server != server {
				return fmt.Errorf("connection %d is listed under server %v", token, server)
			}
		}
	}
	if tracked != len(m.conns.byToken) {
		return fmt.Errorf("%d connections, %d by server", len(m.conns.byToken), tracked)
	}
	for token, c := range m.conns.byToken {
		if !c.due.Due().IsZero() {
			due++
			if !m.conns.due.Has(&c.due) {
				return fmt.Errorf("connection %d is not where it thinks among the deadlines", token)
			}
		}
		ids := make(map[uint8]bool)
		for _, s := range c.subflows {
			if s.id != 0 && ids[s.id] && !s.foreign {
				return fmt.Errorf("connection %d has two subflows of ours with id %d", token, s.id)
			}
			ids[s.id] = ids[s.id] || !s.foreign
		}
	}
	if due != m.conns.due.Len() {
		return fmt.Errorf("%d connections have a deadline, %d are listed", due, m.conns.due.Len())
	}
	offered := len(m.detours.general)
	for _, list := range m.detours.specific {
		offered += len(list)
	}
	if offered != len(m.detours.byID) {
		return fmt.Errorf("%d detours, %d listed", len(m.detours.byID), offered)
	}
	return nil
}

// LeftOfDetours counts what is remembered about detours.
func (m *Manager) LeftOfDetours() int {
	return len(m.detours.byID) + len(m.detours.trials) + len(m.host.tunnels)
}

// Left counts what is remembered about connections and failures.
func (m *Manager) Left() int {
	return len(m.conns.byToken) + len(m.conns.byServer) + m.conns.due.Len() + len(m.detours.failures)
}

// Unsettled counts the ends of subflows and the last counters that wait for each other.
func (m *Manager) Unsettled() int { return len(m.unsettled.ended) + len(m.unsettled.counted) }

// Explores reports whether a connection explores.
func (m *Manager) Explores(token Token) bool { return m.views.explores(token) }

// JoinTrip returns the round trip of a subflow's join from its first sample.
func JoinTrip(s *Sample) time.Duration { return s.joinTrip() }

// MostSharings bounds the comparisons of bottlenecks.
const MostSharings = mostSharings

// AddSharing adds a comparison in which a waypoint gained as much as the direct path lost.
func (m *Manager) AddSharing(waypoint string, server netip.AddrPort, now time.Time) {
	m.detours.sharings.add(waypoint, "", server, 1e6, -1e6, now)
}

// Sharing returns what is known of a waypoint and the direct path, and the number of pairs that are known.
func (m *Manager) Sharing(waypoint string, server netip.AddrPort) (measure.Shares, int) {
	return m.detours.sharings.of(waypoint, "", server), len(m.detours.sharings)
}

// LeastTrip returns the shortest round trip of a subflow with these samples, which are close ones.
func LeastTrip(samples ...Sample) time.Duration {
	var s senses
	for i := range samples {
		s.take(&samples[i], time.Unix(1_800_000_000, 0).Add(time.Duration(i)*LongestInterval), 0, 0, true)
	}
	return s.minRTT
}
