package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file estimates what bulk traffic may expect of a detour. The estimate comes from the goodput of all of this
// host's bulk connections through the same waypoint to the same network of servers (together.go). Connections that
// are there now take their part of it.
//
// A new connection has not shown its kind of traffic yet. Its kind is taken to be that of the last one to the same
// network. A wrong guess costs little: the detour works, and is exchanged if it turns out to be much slower
// (exchange.go).

// goodputAfter is the age from which a series of samples gives a goodput. On most paths slow start is over by then.
const goodputAfter = 2 * time.Second

// found returns what the connection's subflow measured since the last call.
func (w weighing) found(s *subflow) finding {
	f := finding{trip: s.habits.trip.Base(), carried: s.carried(), kind: w.kind}
	if p, known := s.loses(w.now); known {
		f.loss, f.packets = p, s.habits.packets
	}
	s.habits.packets = 0
	if w.kind == measure.Bulk && w.gets(s) > 0 {
		g := w.together()
		u := g.of(s.waypoint(), w.server)
		f.goodput, f.shows = u.goodput, g.shows(s.waypoint(), u)
	}
	return f
}

// learnGoodput records the goodput and the kind of traffic of a finding. A higher goodput counts at once: a
// connection can get less than a path gives for many reasons, but never more. A lower one counts only if the network
// is the reason.
func (r *record) learnGoodput(f finding, now time.Time) {
	if f.kind != measure.Short {
		r.kind = f.kind
	}
	switch {
	case f.goodput <= 0:
		return
	case f.goodput >= r.goodput || !within(r.goodputAt, now, trustsFor):
		r.goodput = f.goodput
	case f.shows:
		r.goodput += smoothing * (f.goodput - r.goodput)
	default:
		return
	}
	if !within(r.goodputAt, now, trustsFor) {
		r.peak = 0
	}
	r.peak = max(r.peak, r.goodput)
	if r.retries > 0 && r.goodput >= loweredTo*r.peak && now.Sub(r.retried) >= provenFor {
		r.retries = 0
	}
	r.goodputAt = now
}

// given returns what bulk traffic gets on a trail, or 0 if that is unknown or too old.
func (h history) given(waypoint string, server netip.AddrPort, now time.Time) float64 {
	r, ok := h.of(waypoint, server)
	if !ok || !within(r.goodputAt, now, trustsFor) {
		return 0
	}
	return r.goodput
}

// expected returns the kind of a connection's traffic, or the kind to expect of a new one.
func (h history) expected(c *conn, now time.Time) measure.Kind {
	if c.kind != measure.Short || c.kindSaid {
		return c.kind
	}
	if r, ok := h.of("", c.server); ok && within(r.at, now, trustsFor) {
		return r.kind
	}
	return measure.Short
}

// leaves returns what one more bulk connection may expect on a trail, or 0 if that is unknown.
func (k *detours) leaves(waypoint string, server netip.AddrPort, now time.Time) float64 {
	given := k.history.given(waypoint, server, now)
	if given == 0 {
		return 0
	}
	return k.together.left(waypoint, server, given, now)
}

// expectedGoodput returns what one more bulk connection may expect on a trail. A detour that shares its bottleneck with
// the direct path adds nothing. known is false if nothing was measured.
func (k *detours) expectedGoodput(waypoint string, server netip.AddrPort, now time.Time) (goodput float64, known bool) {
	goodput = k.leaves(waypoint, server, now)
	if goodput > 0 && waypoint != "" && k.sharesWithDirect(waypoint, server) {
		return 0, true
	}
	return goodput, goodput > 0
}

// usualGoodput returns what bulk traffic may expect through a waypoint that was not measured: as much as on the
// direct path or, if that is unknown, the median of the other waypoints. So the waypoint is preferred to those that
// proved worse than the direct path, but not to those that proved better. It is 0 if nothing was measured.
func (k *detours) usualGoodput(t turn) float64 {
	if direct := k.leaves("", t.server, t.now); direct > 0 {
		return direct
	}
	var all []float64
	for o := range k.leading(t.server) {
		if g := k.leaves(o.Waypoint, t.server, t.now); g > 0 {
			all = append(all, g)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}
