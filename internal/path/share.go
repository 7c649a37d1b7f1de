package path

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file finds out whether a detour shares its bottleneck with another path. When a subflow begins or ceases to
// carry in the middle of bulk traffic, beside one other subflow, its gain is compared with the other's loss
// (measure.Sharing). All connections to one network of servers contribute to the same comparison. Nothing is tried
// for the sake of it. If no subflow begins or ceases to carry in the middle of traffic, the answer stays unknown.
//
// A program that sends less than the paths carry looks like a shared bottleneck, too. Where this host sends, the
// kernel tells them apart, and such times do not count. Where this host receives, they count, because then the detour
// adds nothing either.

const (
	// settlesIn is the time after a change from which a subflow's rate is measured.
	settlesIn = 2 * time.Second
	// steadyFor is the least time over which the rate is measured.
	steadyFor = 3 * time.Second
	// limitedShare is the least share of samples in which the network must have limited what this host sends.
	limitedShare = 0.8
	// mostSharings bounds the number of comparisons.
	mostSharings = 1024
)

// sharings holds the comparisons.
type sharings map[sharingKey]*compared

// sharingKey names a waypoint, another waypoint or "" for the direct path, and a network of servers.
type sharingKey struct {
	waypoint, other string
	network         netip.Prefix
}

func (k sharingKey) compare(x sharingKey) int {
	return cmp.Or(cmp.Compare(k.waypoint, x.waypoint), cmp.Compare(k.other, x.other), k.network.Addr().Compare(x.network.Addr()))
}

type compared struct {
	measure.Sharing
	at time.Time // of the last pair
}

// add adds one comparison of two subflows: waypoint gained gain, and other changed by change.
func (h sharings) add(waypoint, other string, server netip.AddrPort, gain, change float64, now time.Time) {
	if waypoint == "" {
		waypoint, other = other, waypoint
	}
	key := sharingKey{waypoint, other, prefixOf(server.Addr())}
	if waypoint == other {
		return
	}
	if h[key] == nil {
		if len(h) >= mostSharings {
			dropOldest(h, func(c *compared) time.Time { return c.at }, sharingKey.compare)
		}
		h[key] = &compared{}
	}
	h[key].Add(gain, change)
	h[key].at = now
}

// of returns what is known of a waypoint and another, or the direct path if other is empty.
func (h sharings) of(waypoint, other string, server netip.AddrPort) measure.Shares {
	if s := h[sharingKey{waypoint, other, prefixOf(server.Addr())}]; s != nil {
		return s.Result()
	}
	return measure.Shares{}
}

// sharesWithDirect reports whether a waypoint is known to share its bottleneck with the direct path, so that it adds
// nothing.
func (k *detours) sharesWithDirect(waypoint string, server netip.AddrPort) bool {
	return k.sharings.of(waypoint, "", server).Relation == measure.Shared
}

// forget drops old comparisons.
func (h sharings) forget(now time.Time) {
	maps.DeleteFunc(h, func(_ sharingKey, s *compared) bool { return now.Sub(s.at) > remembersFor })
}

// Bottleneck tells whether a detour shares its bottleneck with another path.
type Bottleneck struct {
	// With is the other path's waypoint. It is empty for the direct path.
	With string
	measure.Shares
}

// bottlenecks lists what is known of a waypoint's bottleneck. The direct path is always listed, and comes first.
func (h sharings) bottlenecks(waypoint string, server netip.AddrPort) []Bottleneck {
	list := []Bottleneck{{Shares: h.of(waypoint, "", server)}}
	for key, s := range h {
		if key.waypoint == waypoint && key.other != "" && key.network == prefixOf(server.Addr()) {
			list = append(list, Bottleneck{key.other, s.Result()})
		}
	}
	slices.SortFunc(list, func(a, b Bottleneck) int { return cmp.Compare(a.With, b.With) })
	return list
}

// besides holds what the subflows of a connection carried before and after one of them began or ceased to carry.
type besides struct{ before, now regime }

// regime is a period in which the same one or two subflows carried bulk traffic.
type regime struct {
	of            [2]*subflow
	began         time.Time
	from, until   time.Time // zero: not settled yet
	first, last   [2]uint64 // bytes at from and until
	samples, free int       // free counts the samples in which this host's program limited what it sent
}

// compare compares the present regime of a connection that was just sampled closely with the one before.
func (w weighing) compare(moment measure.Moment) {
	of, ok := w.pairCarries()
	if w.kind != measure.Bulk || !ok {
		w.attention.besides = nil
		return
	}
	if w.attention.besides == nil {
		w.attention.besides = &besides{}
	}
	b := w.attention.besides
	if of != b.now.of {
		*b = besides{before: b.now, now: regime{of: of, began: w.now}}
		if !b.before.steady() {
			b.before = regime{}
		}
	}
	b.now.take(moment, w.now)
	if b.before.steady() && b.now.steady() {
		one, two := &b.before, &b.now
		if one.of[1] != nil {
			one, two = two, one
		}
		w.pair(one, two)
		b.before = regime{}
	}
}

// pairCarries returns the subflows that carry, in the connection's order. ok is false if there are more than two, or
// none.
func (w weighing) pairCarries() (of [2]*subflow, ok bool) {
	n := 0
	for _, s := range w.subflows {
		switch {
		case !s.up || s.backup:
		case n == len(of) || !w.ours(s):
			return of, false
		default:
			of[n] = s
			n++
		}
	}
	return of, n > 0
}

// take adds one sample.
func (r *regime) take(moment measure.Moment, now time.Time) {
	if now.Sub(r.began) < settlesIn {
		return
	}
	for i, s := range r.of {
		if s != nil {
			r.last[i] = s.received + s.acked
		}
	}
	if r.from.IsZero() {
		r.from, r.first = now, r.last
	}
	r.until = now
	r.samples++
	if moment.Acked > moment.Received && !moment.Limited {
		r.free++
	}
}

// steady reports whether the regime is long enough for its rates, and the network limited them.
func (r *regime) steady() bool {
	return r.until.Sub(r.from) >= steadyFor && float64(r.samples-r.free) >= limitedShare*float64(r.samples)
}

// rate returns the bits a second that a subflow carried in the regime, or 0 if it did not carry.
func (r *regime) rate(s *subflow) float64 {
	i := slices.Index(r.of[:], s)
	if i < 0 {
		return 0
	}
	return 8 * float64(r.last[i]-r.first[i]) / r.until.Sub(r.from).Seconds()
}

// pair compares a regime in which one subflow carried with one in which another carried beside it.
func (w weighing) pair(one, two *regime) {
	stayed := one.of[0]
	came := two.of[0]
	if came == stayed {
		came = two.of[1]
	}
	if one.of[1] != nil || came == nil || !slices.Contains(two.of[:], stayed) {
		return
	}
	w.detours.sharings.add(came.waypoint(), stayed.waypoint(), w.server, two.rate(came), two.rate(stayed)-one.rate(stayed), w.now)
}
