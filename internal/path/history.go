package path

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// What subflows measured is remembered for each waypoint and each network of servers, so that later
// connections choose better and two connections share what they know. It concerns the network that this
// host is on, and is forgotten on another.

const (
	// mostTrails bounds the memory of history.
	mostTrails = 4096
	// A measurement is forgotten after remembersFor, and decides nothing after trustsFor.
	remembersFor = 24 * time.Hour
	trustsFor    = time.Hour
	// After it lost too much, a waypoint carries nothing towards that network for shunnedFor. That doubles
	// each time, up to shunnedLongest.
	shunnedFor     = time.Minute
	shunnedLongest = time.Hour
	// smoothing is the weight of a new measurement of loss, and of a goodput lower than before.
	smoothing = 0.2
	// A loss counts half if it was seen in so many packets, fully if in very many, and EnoughPackets are as good as any number.
	fewPackets = 100
	// EnoughPackets bounds Trail.Packets.
	EnoughPackets = 10000
)

// trail is the key of a record: a waypoint, or the direct path if empty, and a network of servers.
type trail struct {
	waypoint string
	network  netip.Prefix
}

// prefixOf returns the block of addresses to which routes are usually the same.
func prefixOf(a netip.Addr) netip.Prefix {
	return blockOf(a, 24, 48)
}

// blockOf returns the block of addresses around a, with so many bits in IPv4 or IPv6.
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
	packets uint64        // in which the loss was seen, up to EnoughPackets
	shunned time.Time     // it lost too much, and is avoided until then
	times   int           // how often in a row

	goodput   float64   // of this host's bulk connections, in bits of payload a second
	goodputAt time.Time // zero: never
	kind      measure.Kind

	peak    float64 // the highest goodput lately
	retries int     // how often its waypoint was tried again since that was lowered
	retried time.Time

	doubts  int       // how often its waypoint gave less than it had said, as it was loaded
	doubted time.Time // the last time
}

// finding is what a connection has measured on a trail.
type finding struct {
	trip    time.Duration
	loss    float64
	packets uint64       // since the last finding; 0: the loss is unknown
	goodput float64      // 0: unknown
	shows   bool         // the network limits the goodput
	kind    measure.Kind // of the connection's traffic
}

// lost returns the share of packets that is believed to be lost: less than was seen, if few packets were.
func (r *record) lost() float64 {
	if r.packets == 0 {
		return 0
	}
	return r.loss * float64(r.packets) / float64(r.packets+fewPackets)
}

// within reports whether at is at most so long ago. It is not if it is yet to come: then the clock was set back, and nobody
// knows how long ago it is.
func within(at, now time.Time, most time.Duration) bool {
	age := now.Sub(at)
	return age >= 0 && age <= most
}

// isShunned reports whether the trail is avoided. If that would last for longer than it was shunned for, the clock was
// set back.
func (r *record) isShunned(now time.Time) bool {
	return now.Before(r.shunned) && r.shunned.Sub(now) <= shunnedTime(r.times-1)
}

// shunnedTime returns for how long a waypoint is avoided that was so many times before.
func shunnedTime(times int) time.Duration {
	return min(shunnedFor<<min(max(times, 0), 10), shunnedLongest)
}

// history holds what was measured.
type history map[trail]record

func (h history) of(waypoint string, server netip.AddrPort) (record, bool) {
	r, ok := h[trail{waypoint, prefixOf(server.Addr())}]
	return r, ok
}

// learn records a finding.
func (h history) learn(waypoint string, server netip.AddrPort, f finding, now time.Time) {
	key := trail{waypoint, prefixOf(server.Addr())}
	r, known := h[key]
	if !known && len(h) >= mostTrails {
		h.dropOldest()
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
		r.loss += smoothing * (f.loss - r.loss)
		r.packets = min(r.packets+f.packets, EnoughPackets)
	}
	r.learnGoodput(f, now)
	r.at = now
	h[key] = r
}

// shun records that a waypoint lost too much towards a server. It returns until when it is avoided.
func (h history) shun(waypoint string, server netip.AddrPort, loss float64, now time.Time) time.Time {
	key := trail{waypoint, prefixOf(server.Addr())}
	r := h[key]
	if r.isShunned(now) {
		return r.shunned // another connection was faster
	}
	if !within(r.shunned, now, shunnedLongest) {
		r.times = 0
	}
	r.at, r.loss, r.packets = now, loss, EnoughPackets // it was certain
	r.shunned = now.Add(shunnedTime(r.times))
	r.times++
	h[key] = r
	return r.shunned
}

// dropOldest makes room: an eighth of all goes.
func (h history) dropOldest() {
	keys := slices.SortedFunc(maps.Keys(h), func(a, b trail) int {
		return cmp.Or(h[a].at.Compare(h[b].at), cmp.Compare(a.waypoint, b.waypoint), a.network.Addr().Compare(b.network.Addr()))
	})
	for _, key := range keys[:len(keys)/8] {
		delete(h, key)
	}
}

// forget drops old records, and those of a time that is yet to come.
func (h history) forget(now time.Time) {
	maps.DeleteFunc(h, func(_ trail, r record) bool { return !within(r.at, now, remembersFor) && !r.isShunned(now) })
}
