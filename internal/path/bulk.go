package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file expects what bulk traffic gets of a detour, from what bulk connections to the same network got: the goodput of all
// that this host had there at the same time (together.go). Connections that are there now take their part of it.
//
// A new connection does not show yet what it is. It is taken to be what the last one to the same network was. A wrong guess
// costs little: the detour is one of those that work, and is exchanged if it turns out to be much slower (exchange.go).

// goodputAfter is the age of a series of samples from which its goodput counts: slow start is over on most paths.
const goodputAfter = 2 * time.Second

// found returns what the connection's subflow has measured since the last time.
func (m *Manager) found(t turn, s *subflow) finding {
	f := finding{trip: s.habits.trip.Base(), kind: t.kind}
	if p, known := s.loses(t.now); known {
		f.loss, f.packets = p, s.habits.packets
	}
	s.habits.packets = 0
	if t.kind == measure.Bulk && t.gets(s) > 0 {
		g := m.together(t.now)
		u := g.of(s.waypoint(), t.server)
		f.goodput, f.shows = u.goodput, g.shows(s.waypoint(), u)
	}
	return f
}

// learnGoodput records the goodput and the kind of traffic of a finding. A higher goodput counts at once, because connections
// get less than a path gives for many reasons, but never more. A lower one counts only if the network is the reason.
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

// given returns what bulk traffic got on a trail, or 0 if that is unknown or too long ago.
func (h history) given(waypoint string, server netip.AddrPort, now time.Time) float64 {
	r, ok := h.of(waypoint, server)
	if !ok || !within(r.goodputAt, now, trustsFor) {
		return 0
	}
	return r.goodput
}

// expected returns the kind of traffic that a connection has, or that it is likely to have.
func (h history) expected(c *conn, now time.Time) measure.Kind {
	if c.kind != measure.Short || c.kindSaid {
		return c.kind
	}
	if r, ok := h.of("", c.server); ok && within(r.at, now, trustsFor) {
		return r.kind
	}
	return measure.Short
}

// leaves returns what one more bulk connection may expect of a trail, or 0 if that is unknown.
func (k *detours) leaves(waypoint string, server netip.AddrPort, now time.Time) float64 {
	given := k.history.given(waypoint, server, now)
	if given == 0 {
		return 0
	}
	return k.together.left(waypoint, server, given, now)
}

// usualGoodput returns what bulk traffic may expect through a waypoint of which nothing is known: what it may of the direct
// path, or else of the median of the other waypoints. So it comes after those that proved better than the direct path, and before
// those that are worse. It is 0 if nothing is known of any.
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
