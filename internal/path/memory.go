package path

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// Memory has a Manager's measurements of the ways through waypoints on one network, and what it concluded about other
// members' claims, in a form that outlives it.
type Memory struct {
	// Addrs are the addresses of this host, without those of tunnels. On another network nothing of it is true.
	Addrs  []netip.Addr
	Trails []Trail
	// Verdicts are about other members' claims, and hold on other networks as well.
	Verdicts []claim.Verdict
}

// Trail has the measurements of one waypoint, or of the direct path if that is empty, towards a network of servers.
type Trail struct {
	Waypoint string
	Network  netip.Prefix
	At       time.Time
	Trip     time.Duration // the least round trip
	Loss     float64       // share of packets
	Packets  uint64        // in which that was seen, up to EnoughPackets
	Shunned  time.Time     // it lost too much, and is avoided until then
	Times    int           // how often in a row
	// Goodput is the rate of a bulk connection, in bits of payload a second, at GoodputAt; zero: not measured.
	Goodput   float64
	GoodputAt time.Time
	Kind      measure.Kind // of the traffic that was seen last
}

// valid reports whether a trail can have been measured by now. A file may say anything, and clocks may be wrong.
func (t Trail) valid(now time.Time) bool {
	return t.Network.IsValid() && t.Network == prefixOf(t.Network.Addr()) && !t.At.After(now) && now.Sub(t.At) <= remembersFor &&
		t.Trip >= 0 && t.Trip < longestTripKept && t.Loss >= 0 && t.Loss <= 1 && t.Packets <= EnoughPackets && t.Times >= 0 && t.Shunned.Sub(now) <= shunnedLongest &&
		t.Goodput >= 0 && t.Goodput < highestGoodputKept && !t.GoodputAt.After(now) && t.Kind <= measure.Bulk
}

// longestTripKept bounds the round trips that are believed.
const longestTripKept = time.Minute

// highestGoodputKept bounds the goodput that is believed, in bits a second.
const highestGoodputKept = 1e12

// Memory returns what was measured on the present network, the newest first.
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

// steady returns a time from a file as one that is compared by now's monotonic clock, as all others are: what happens to the
// clock from now on does not matter.
func steady(at, now time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return now.Add(at.Sub(now))
}

// recall takes over what an earlier Manager measured, if this host is on the same network, and whom it believed.
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
