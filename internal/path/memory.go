package path

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// Memory is the part of a Manager's state that outlives it: measurements on one network, and verdicts about other
// members' claims.
type Memory struct {
	// Addrs are the addresses of this host, without those of tunnels. They identify the network that Trails hold for.
	Addrs  []netip.Addr
	Trails []Trail
	// Verdicts are about other members' claims. They hold on all networks.
	Verdicts []claim.Verdict
}

// Trail has the measurements through one waypoint, or on the direct path if Waypoint is empty, towards a network of
// servers.
type Trail struct {
	Waypoint string
	Network  netip.Prefix
	At       time.Time
	Trip     time.Duration // shortest round trip
	Loss     float64       // share of packets lost
	Packets  uint64        // number of packets that Loss was measured over, at most EnoughPackets
	Shunned  time.Time     // the time until which it is avoided because it lost too much
	Times    int           // how often in a row it was shunned
	// Goodput is the rate of bulk traffic at GoodputAt, in bits of payload a second. Zero: not measured.
	Goodput   float64
	GoodputAt time.Time
	Kind      measure.Kind // of the latest traffic
}

// valid reports whether a trail can have been measured before now. A file may have any content, and clocks may be
// wrong.
func (t Trail) valid(now time.Time) bool {
	return t.Network.IsValid() && t.Network == prefixOf(t.Network.Addr()) && !t.At.After(now) && now.Sub(t.At) <= remembersFor &&
		t.Trip >= 0 && t.Trip < longestTripKept && t.Loss >= 0 && t.Loss <= 1 && t.Packets <= EnoughPackets && t.Times >= 0 && t.Shunned.Sub(now) <= shunnedLongest &&
		t.Goodput >= 0 && t.Goodput < highestGoodputKept && !t.GoodputAt.After(now) && t.Kind <= measure.Bulk
}

// longestTripKept bounds the round trips that are accepted from a file.
const longestTripKept = time.Minute

// highestGoodputKept bounds the goodput that is accepted from a file, in bits a second.
const highestGoodputKept = 1e12

// Memory returns what was measured on the present network, the latest first.
func (m *Manager) Memory() Memory {
	mem := Memory{Addrs: m.host.withoutTunnels(m.host.addrs), Verdicts: m.detours.claims.Verdicts()}
	for key, r := range m.detours.history {
		mem.Trails = append(mem.Trails, Trail{
			key.waypoint, key.network, r.at, r.trip, r.loss, r.packets, r.shunned, r.times, r.goodput, r.goodputAt, r.kind,
		})
	}
	slices.SortFunc(mem.Trails, func(a, b Trail) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Waypoint, b.Waypoint), a.Network.Addr().Compare(b.Network.Addr()))
	})
	return mem
}

// steady turns a time from a file into one with now's monotonic clock, so that later changes of the wall clock do not
// matter.
func steady(at, now time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return now.Add(at.Sub(now))
}

// recall takes over the verdicts of an earlier Manager and, if this host is on the same network, its measurements.
func (m *Manager) recall(now time.Time) {
	memory := m.cfg.Memory
	m.cfg.Memory = Memory{}
	m.detours.claims.Recall(memory.Verdicts, now)
	addrs := slices.Clone(memory.Addrs)
	slices.SortFunc(addrs, netip.Addr.Compare)
	if len(addrs) == 0 || !slices.Equal(addrs, m.host.withoutTunnels(m.host.addrs)) {
		return
	}
	for _, t := range memory.Trails {
		if t.valid(now) && len(m.detours.history) < mostTrails {
			m.detours.history[trail{t.Waypoint, t.Network}] = record{
				at: steady(t.At, now), trip: t.Trip, loss: t.Loss, packets: t.Packets, shunned: steady(t.Shunned, now), times: t.Times,
				goodput: t.Goodput, goodputAt: steady(t.GoodputAt, now), kind: t.Kind, peak: t.Goodput,
			}
		}
	}
}
