package path

import (
	"iter"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file exchanges a detour in use for a better one that became known later: a connection takes its detours when it
// begins, and what other connections measured since may show that messages would wait much less through another waypoint.
// Only measurements of the same kind are compared, the least round trips and the losses in the history, because the
// queue of a path in use says nothing about other paths. Bulk traffic compares what a subflow gets with what it would get of what
// other waypoints gave. Only a subflow that the network limits is compared: a server's program may have less, or the server's
// kernel may use another subflow more.

const (
	// A waypoint is exchanged for another if messages wait so many times less through that, and so much less, for so long;
	// or if bulk traffic got so many times as much.
	exchangeFactor = 1.5
	exchangeBy     = 10 * time.Millisecond
	exchangeAfter  = 10 * time.Second
	// Measurements older than this do not count.
	exchangeTrusts = 10 * time.Minute
	// From then on one connection in exchangeOneIn begins in each second, so that not all take the other at once.
	exchangeOneIn = 8
)

// waits returns about how long messages wait on a way that was measured lately.
func (h history) waits(t turn, waypoint string) (wait time.Duration, known bool) {
	r, ok := h.of(waypoint, t.server)
	if !ok || r.trip == 0 || !within(r.at, t.now, exchangeTrusts) || r.isShunned(t.now) {
		return 0, false
	}
	return waits(r.trip, r.lost()), true
}

// exchangeSlower has a detour exchanged if messages wait much longer over it than over another that may be taken, and than on
// the direct path, or if bulk traffic gets much less over it than over another. It reports whether one is to be exchanged.
func (m *Manager) exchangeSlower(t turn) bool {
	a := t.attention
	if t.kind == measure.Short || t.kind == measure.Bulk && t.isTrying() || !a.comparedAt.IsZero() && t.now.Sub(a.comparedAt) < drawsEvery {
		return false
	}
	a.comparedAt = t.now
	s := m.slower(t)
	if t.kind == measure.Bulk {
		s = m.poorer(t)
	}
	if s == nil {
		a.slowerSince = time.Time{}
		return false
	}
	if a.slowerSince.IsZero() {
		a.slowerSince = t.now
	}
	if t.exchangedLately() || t.fledLately() || !t.failedTry(s) && (t.now.Sub(a.slowerSince) < exchangeAfter || m.views.drawAt(t.token, s.detour.Waypoint, t.now)%exchangeOneIn != 0) {
		return false
	}
	a.slowerSince = time.Time{}
	s.crowded, t.exchanged = t.now, t.now
	t.exchanges++
	if t.kind == measure.Bulk {
		m.together(t.now).leaves(s.detour.Waypoint, t.server, t.now)
	}
	return true
}

// failedTry reports whether the poorer detour was taken to measure it, and that is done.
func (t turn) failedTry(s *subflow) bool { return s.why.explored && t.now.Sub(s.since) >= exploresFor }

// slower returns the detour of the connection that is to be exchanged if that stays so, or nil.
func (m *Manager) slower(t turn) (worst *subflow) {
	best, known := m.bestSpare(t)
	if direct, ok := m.detours.history.waits(t, ""); !known || !ok || best >= direct {
		return nil
	}
	var longest time.Duration
	for _, s := range t.subflows {
		if !m.exchangeable(t, s) {
			continue
		}
		wait, known := m.detours.history.waits(t, s.detour.Waypoint)
		if known && float64(best+exchangeBy)*exchangeFactor < float64(wait) && wait > longest {
			worst, longest = s, wait
		}
	}
	return worst
}

// bestSpare returns about how long messages wait through the best waypoint that the connection may take and does not use.
func (m *Manager) bestSpare(t turn) (best time.Duration, known bool) {
	for o := range m.spare(t) {
		if wait, ok := m.detours.history.waits(t, o.Waypoint); ok && (!known || wait < best) {
			best, known = wait, true
		}
	}
	return best, known
}

// poorer returns the detour of a bulk connection that is to be exchanged because another gave much more, if that stays so, or nil.
func (m *Manager) poorer(t turn) (worst *subflow) {
	g := m.together(t.now)
	most := m.mostLeft(t, t.lost)
	for _, s := range t.subflows {
		if !m.exchangeable(t, s) {
			continue
		}
		gets := t.gets(s)
		if gets = g.share(gets, s.waypoint(), t.server); gets > 0 && gets < most/t.margin(s) && s.pressed(t.now) {
			worst, most = s, gets*t.margin(s)
		}
	}
	return worst
}

// margin returns how many times as much another waypoint must give as this detour. One that was only tried has no claim to
// its place.
func (t turn) margin(s *subflow) float64 {
	if s.why.explored {
		return sameFactor
	}
	return exchangeFactor
}

// mostLeft returns the most that a bulk connection may expect of a waypoint that it may take and does not use, besides those for
// which without returns true.
func (m *Manager) mostLeft(t turn, without func(waypoint string) bool) (most float64) {
	g := m.together(t.now)
	for o := range m.spare(t) {
		r, ok := m.detours.history.of(o.Waypoint, t.server)
		if !ok || !within(r.goodputAt, t.now, exchangeTrusts) || r.isShunned(t.now) || m.detours.sharesWithDirect(o.Waypoint, t.server) || without(o.Waypoint) {
			continue
		}
		most = max(most, g.left(o.Waypoint, t.server, r.goodput, t.now))
	}
	return most
}

// exchangeable reports whether the subflow is a detour that may be exchanged for a better one.
func (m *Manager) exchangeable(t turn, s *subflow) bool {
	return s.detour != nil && t.ours(s) && s.why != nil && s.crowded.IsZero() && !s.isLossy() && !s.isSpent() &&
		!m.detours.steering.wants(s.detour.Waypoint)
}

// spare returns an iterator over the detours that the connection may take, through waypoints that it does not use.
func (m *Manager) spare(t turn) iter.Seq[*offered] {
	return func(yield func(*offered) bool) {
		for o := range m.unused(t) {
			if m.detours.loads.of(o.via(), t.now).IsZero() && !yield(o) {
				return
			}
		}
	}
}

// unused returns an iterator over the detours that the connection may take, through waypoints that it does not use, loaded ones
// included.
func (m *Manager) unused(t turn) iter.Seq[*offered] {
	return func(yield func(*offered) bool) {
		for o := range m.detours.leading(t.server) {
			remote, ok := m.detours.target(t.conn, &o.Detour)
			if !ok || t.taken(&o.Detour, remote) || t.has(func(s *subflow) bool { return s.waypoint() == o.Waypoint }) ||
				m.detours.budget.Spares(o.Waypoint) {
				continue
			}
			if until, why := m.detours.rests(t, o); t.now.Before(until) || why.lasts() {
				continue
			}
			if !yield(o) {
				return
			}
		}
	}
}
