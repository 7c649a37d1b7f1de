package path

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file remembers what subflows measured, for each waypoint and each network of servers, so that later
// connections choose better and simultaneous ones share what they learned. The measurements hold for the network that
// this host is on. On another network they do not count.

const (
	// mostTrails bounds the number of records.
	mostTrails = 4096
	// remembersFor is the time after which a measurement is forgotten.
	remembersFor = 24 * time.Hour
	// trustsFor is the time for which a measurement decides something.
	trustsFor = time.Hour
	// shunnedFor is the time for which a waypoint is avoided after it lost too much towards a network of servers. It
	// doubles each time, up to shunnedLongest.
	shunnedFor     = time.Minute
	shunnedLongest = time.Hour
	// smoothing is the weight of a new goodput that is lower than before, and the most weight of a new loss.
	smoothing = 0.2
	// fewPackets is the number of packets at which a measured loss counts half. In many more packets it counts fully.
	fewPackets = 100
	// lossLasts is the number of packets over which each counts alike for the loss.
	lossLasts = 500
	// lossStays is the time since the direct path was last measured for which its loss counts fully.
	lossStays = time.Minute
	// EnoughPackets bounds Trail.Packets, because more packets make a loss no more certain.
	EnoughPackets = 10000
)

// trail is the key of a record: a waypoint, or "" for the direct path, and a network of servers.
type trail struct {
	waypoint string
	network  netip.Prefix
}

func (t trail) compare(x trail) int {
	return cmp.Or(cmp.Compare(t.waypoint, x.waypoint), t.network.Addr().Compare(x.network.Addr()))
}

// trailOf returns the key of a waypoint's record towards a server.
func trailOf(waypoint string, server netip.AddrPort) trail {
	return trail{waypoint, prefixOf(server.Addr())}
}

// prefixOf returns the block of addresses around a to which routes are usually the same.
func prefixOf(a netip.Addr) netip.Prefix {
	return blockOf(a, 24, 48)
}

// blockOf returns the block of addresses around a with a prefix of bits4 in IPv4 or bits6 in IPv6.
func blockOf(a netip.Addr, bits4, bits6 int) netip.Prefix {
	bits := bits4
	if a.Is6() {
		bits = bits6
	}
	p, _ := a.Prefix(bits)
	return p
}

// record holds the measurements of one trail.
type record struct {
	at      time.Time
	trip    time.Duration // least round trip
	loss    float64       // share of packets, smoothed
	packets uint64        // number of packets that loss was measured over, at most EnoughPackets
	shunned time.Time     // the time until which it is avoided because it lost too much
	times   int           // how often in a row it was shunned
	carried bool          // data got through

	goodput   float64   // of this host's bulk connections, in bits of payload a second
	goodputAt time.Time // when it was measured; zero: never
	kind      measure.Kind

	peak    float64 // highest recent goodput
	retries int     // how often the waypoint was tried again since goodput fell below peak
	retried time.Time

	nothing nothing // whether its detours add anything to bulk traffic

	doubts  int       // how often the waypoint gave less than it had stated when it was loaded
	doubted time.Time // the last time
}

// finding holds what a connection measured on a trail since its last finding.
type finding struct {
	trip    time.Duration
	loss    float64
	packets uint64       // packets that loss was measured over; 0: the loss is unknown
	carried bool         // data got through
	goodput float64      // 0: unknown
	shows   bool         // the network limits the goodput, and it is all that the waypoint gives there
	kind    measure.Kind // of the connection's traffic
}

// lost returns the loss to expect. If it was measured over few packets, that is less than what was measured.
func (r *record) lost() float64 {
	if r.packets == 0 {
		return 0
	}
	return r.loss * float64(r.packets) / float64(r.packets+fewPackets)
}

// surelyLost returns the loss to expect, less a standard deviation of what chance makes of it (that of a binomial
// distribution).
func (r *record) surelyLost() float64 {
	if r.packets == 0 {
		return 0
	}
	return max(0, r.lost()-math.Sqrt(r.loss/float64(min(r.packets, lossLasts))))
}

// hasTrip reports whether a round trip is known that still decides something.
func (r *record) hasTrip(now time.Time) bool { return r.trip > 0 && within(r.at, now, trustsFor) }

// aged returns a record of the direct path as if its loss had been measured over fewer packets the longer ago that was: half as
// many for each lossStays after the first. Otherwise messages that left the direct path would never return to it, because
// nothing shows any more what it loses.
func (r record) aged(now time.Time) record {
	if idle := now.Sub(r.at); idle > lossStays {
		r.packets = uint64(float64(min(r.packets, lossLasts)) * math.Exp2(1-idle.Seconds()/lossStays.Seconds()))
	}
	return r
}

// lossWeight returns the weight of a loss that was measured over this number of packets. It is small for few packets, because
// a single loss among them is no certain measurement.
func (r *record) lossWeight(packets uint64) float64 {
	share := float64(packets) / float64(min(r.packets, lossLasts)+packets)
	if r.packets < lossLasts {
		return share
	}
	return min(share, smoothing)
}

// doubled returns a time that doubles with each repetition, up to most.
func doubled(least time.Duration, times int, most time.Duration) time.Duration {
	return min(least<<min(max(times, 0), 10), most)
}

// within reports whether at is in the past, and no longer ago than most. A time in the future does not count: the
// clock was set back, and nobody knows how long ago it is.
func within(at, now time.Time, most time.Duration) bool {
	age := now.Sub(at)
	return age >= 0 && age <= most
}

// isShunned reports whether the trail is avoided. It is not if that would last longer than it ever should, because
// then the clock was set back.
func (r *record) isShunned(now time.Time) bool {
	return now.Before(r.shunned) && r.shunned.Sub(now) <= shunnedTime(r.times-1)
}

// shunnedTime returns the time for which a waypoint is avoided that was avoided this many times before.
func shunnedTime(times int) time.Duration {
	return doubled(shunnedFor, times, shunnedLongest)
}

// history holds the records of all trails.
type history map[trail]record

func (h history) of(waypoint string, server netip.AddrPort) (record, bool) {
	r, ok := h[trailOf(waypoint, server)]
	return r, ok
}

// learn records a finding.
func (h history) learn(waypoint string, server netip.AddrPort, f finding, now time.Time) {
	key := trailOf(waypoint, server)
	r, known := h[key]
	if !known && len(h) >= mostTrails {
		h.dropOldest()
	}
	if waypoint == "" {
		r = r.aged(now)
	}
	old := !within(r.at, now, trustsFor)
	if old || r.trip == 0 || f.trip > 0 && f.trip < r.trip {
		r.trip = f.trip
	}
	switch {
	case f.packets == 0:
	case old || r.packets == 0:
		r.loss, r.packets = f.loss, min(f.packets, EnoughPackets)
	default:
		r.loss += r.lossWeight(f.packets) * (f.loss - r.loss)
		r.packets = min(r.packets+f.packets, EnoughPackets)
	}
	r.learnGoodput(f, now)
	r.carried = f.carried || r.carried && !old
	r.at = now
	h[key] = r
}

// shun records that a waypoint lost too much towards a server. It returns the time until which the waypoint is
// avoided.
func (h history) shun(waypoint string, server netip.AddrPort, loss float64, now time.Time) time.Time {
	key := trailOf(waypoint, server)
	r := h[key]
	if r.isShunned(now) {
		return r.shunned // another connection shunned it just before
	}
	if !within(r.shunned, now, shunnedLongest) {
		r.times = 0
	}
	r.at, r.loss, r.packets = now, loss, EnoughPackets // setting it aside needed certain evidence
	r.shunned = now.Add(shunnedTime(r.times))
	r.times++
	h[key] = r
	return r.shunned
}

// dropOldest drops the oldest eighth of the records.
func (h history) dropOldest() { dropOldest(h, func(r record) time.Time { return r.at }, trail.compare) }

// dropOldest drops the eighth of a map's entries whose times are the earliest. order decides between equal times, so that every
// run drops the same.
func dropOldest[K comparable, V any](entries map[K]V, at func(V) time.Time, order func(a, b K) int) {
	keys := slices.SortedFunc(maps.Keys(entries), func(a, b K) int {
		return cmp.Or(at(entries[a]).Compare(at(entries[b])), order(a, b))
	})
	for _, key := range keys[:len(keys)/8] {
		delete(entries, key)
	}
}

// forget drops old records, and those from a future time.
func (h history) forget(now time.Time) {
	maps.DeleteFunc(h, func(_ trail, r record) bool { return !within(r.at, now, remembersFor) && !r.isShunned(now) })
}
