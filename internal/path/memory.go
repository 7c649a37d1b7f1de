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
	// Addrs identify the network that Trails hold for, as LocalAddrs.Network does.
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

// Memory returns what was measured on the present network, the latest first. While nothing was, it returns what was
// measured on the network before.
func (m *Manager) Memory() Memory {
	mem := Memory{Addrs: m.host.last, Trails: m.detours.history.trails()}
	if len(mem.Trails) == 0 && len(m.elsewhere.Trails) > 0 {
		mem = Memory{Addrs: m.elsewhere.Addrs, Trails: slices.Clone(m.elsewhere.Trails)}
	}
	mem.Verdicts = slices.Concat(m.elsewhere.Verdicts, m.detours.claims.Verdicts())
	return mem
}

// trails returns all records, the latest first.
func (h history) trails() (list []Trail) {
	for key, r := range h {
		list = append(list, Trail{
			key.waypoint, key.network, r.at, r.trip, r.loss, r.packets, r.shunned, r.times, r.goodput, r.goodputAt, r.kind,
		})
	}
	slices.SortFunc(list, func(a, b Trail) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Waypoint, b.Waypoint), a.Network.Addr().Compare(b.Network.Addr()))
	})
	return list
}

// forget drops expired measurements.
func (mem *Memory) forget(now time.Time) {
	mem.Trails = slices.DeleteFunc(mem.Trails, func(t Trail) bool { return now.Sub(t.At) > remembersFor })
}

// steady turns a time from a file into one with now's monotonic clock, so that later changes of the wall clock do not
// matter.
func steady(at, now time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return now.Add(at.Sub(now))
}

// recallVerdicts takes over the verdicts of an earlier Manager.
func (m *Manager) recallVerdicts(now time.Time) {
	m.detours.claims.Recall(m.elsewhere.Verdicts, now)
	m.elsewhere.Verdicts = nil
}

// move puts aside what was measured on the network from, and takes up what is known of the network that this host is on
// now.
func (m *Manager) move(from []netip.Addr, now time.Time) {
	left := Memory{Addrs: from, Trails: m.detours.history.trails()}
	m.detours.moved()
	if slices.Equal(m.elsewhere.Addrs, m.host.last) {
		m.detours.history.recall(m.elsewhere.Trails, now)
		m.elsewhere = Memory{}
	}
	if len(left.Trails) > 0 {
		m.elsewhere = left
	}
}

// recall takes over what was measured earlier.
func (h history) recall(list []Trail, now time.Time) {
	for _, t := range list {
		if t.valid(now) && len(h) < mostTrails {
			h[trail{t.Waypoint, t.Network}] = record{
				at: steady(t.At, now), trip: t.Trip, loss: t.Loss, packets: t.Packets, shunned: steady(t.Shunned, now), times: t.Times,
				goodput: t.Goodput, goodputAt: steady(t.GoodputAt, now), kind: t.Kind, peak: t.Goodput,
			}
		}
	}
}
