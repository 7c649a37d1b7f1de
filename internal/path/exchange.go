package path

import (
	"iter"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file exchanges a detour in use for a better one that became known later. A connection takes its detours when
// it begins. Since then other connections may have found that messages wait much less through another waypoint.
//
// Messages compare only measurements of the same kind: the shortest round trips and the losses in the history. The
// queue of a path in use says nothing about other paths. Bulk traffic compares what a subflow gets with what it may
// expect of other waypoints. Only a subflow that the network limits is compared, because the server's program may
// have less to send, or the server's kernel may use another subflow more.

const (
	// exchangeFactor is the factor by which another waypoint must be better, for messages and for bulk traffic.
	exchangeFactor = 1.5
	// exchangeBy is the time that another waypoint must also save messages.
	exchangeBy = 10 * time.Millisecond
	// exchangeAfter is the time for which another waypoint must be better.
	exchangeAfter = 10 * time.Second
	// queuedFor is that time if messages wait only behind this host's bulk traffic.
	queuedFor = 2 * time.Second
	// exchangeTrusts is the age up to which measurements count.
	exchangeTrusts = 10 * time.Minute
	// exchangeOneIn makes one connection in 8 exchange its detour each second after exchangeAfter, so that not all
	// take the other at once.
	exchangeOneIn = 8
)

// waits estimates how long messages wait through a waypoint, or on the direct path. queue is the part of it for which they wait
// behind this host's bulk traffic. known is false if the path was not measured recently.
func (k *detours) waits(t turn, waypoint string) (wait, queue time.Duration, known bool) {
	r, ok := k.history.of(waypoint, t.server)
	if !ok || r.trip == 0 || !within(r.at, t.now, exchangeTrusts) || r.isShunned(t.now) {
		return 0, 0, false
	}
	queue = k.together.queue(waypoint, t.server, t.now)
	return waits(r.trip, r.lost()) + queue, queue, true
}

// exchangeSlower marks a detour for an exchange if another waypoint is much better for the connection's kind of
// traffic. For messages the other must also be better than the direct path. It reports whether it marked one.
func (m *Manager) exchangeSlower(t turn) bool {
	a := t.attention
	if t.kind == measure.Short || t.kind == measure.Bulk && t.isTrying() || !a.comparedAt.IsZero() && t.now.Sub(a.comparedAt) < drawsEvery {
		return false
	}
	a.comparedAt = t.now
	var s *subflow
	var why SubflowReason
	queued := false
	if t.kind == measure.Bulk {
		s, why = m.poorer(t)
	} else {
		s, why, queued = m.slower(t)
	}
	if s == nil {
		a.slowerSince = time.Time{}
		return false
	}
	if a.slowerSince.IsZero() {
		a.slowerSince = t.now
	}
	since := t.now.Sub(a.slowerSince)
	soon := t.failedTry(s) || queued && since >= queuedFor
	if t.exchangedLately() || t.fledLately() || !soon && (since < exchangeAfter || m.views.drawAt(t.token, s.detour.Waypoint, t.now)%exchangeOneIn != 0) {
		return false
	}
	a.slowerSince = time.Time{}
	s.crowded, t.exchanged = t.now, t.now
	t.planEnd(s, why)
	t.exchanges++
	if t.kind == measure.Bulk {
		m.together(t.now).leaves(s.detour.Waypoint, t.server, t.now)
	}
	return true
}

// failedTry reports whether the detour was taken to measure it, and the measurement is done.
func (t turn) failedTry(s *subflow) bool { return s.why.Explored && t.now.Sub(s.since) >= exploresFor }

// slower returns the detour whose messages would wait much less through another waypoint, or nil, and the comparison. queued
// is set if that is so only because they wait behind this host's bulk traffic. Other hosts do not move then.
func (m *Manager) slower(t turn) (worst *subflow, why SubflowReason, queued bool) {
	best, who, known := m.bestSpare(t)
	if direct, _, ok := m.detours.waits(t, ""); !known || !ok || best >= direct {
		return nil, why, false
	}
	isSlow := func(wait time.Duration) bool { return float64(best+exchangeBy)*exchangeFactor < float64(wait) }
	var longest time.Duration
	for _, s := range t.subflows {
		if !m.exchangeable(t, s) {
			continue
		}
		wait, queue, known := m.detours.waits(t, s.detour.Waypoint)
		if known && isSlow(wait) && wait > longest {
			worst, longest, queued = s, wait, !isSlow(wait-queue)
		}
	}
	return worst, SubflowReason{Cause: CauseSlower, Other: &policy.Comparison{Waypoint: who, Wait: longest, OtherWait: best, Measured: true}}, queued
}

// bestSpare returns the shortest wait through the waypoints that the connection may take and does not use.
func (m *Manager) bestSpare(t turn) (best time.Duration, who string, known bool) {
	for o := range m.spare(t) {
		if wait, _, ok := m.detours.waits(t, o.Waypoint); ok && (!known || wait < best) {
			best, who, known = wait, o.Waypoint, true
		}
	}
	return best, who, known
}

// poorer returns the detour of a bulk connection that gets much less than another waypoint would give, or nil, and the
// comparison.
func (m *Manager) poorer(t turn) (worst *subflow, why SubflowReason) {
	g := m.together(t.now)
	offered, who := m.mostLeft(t, t.lost)
	most := offered
	for _, s := range t.subflows {
		if !m.exchangeable(t, s) {
			continue
		}
		gets := t.gets(s)
		if gets = g.share(gets, s.waypoint(), t.server); gets > 0 && gets < most/t.margin(s) && s.pressed(t.now) {
			worst, most = s, gets*t.margin(s)
			why = SubflowReason{Cause: CauseGivesLess, Other: &policy.Comparison{Waypoint: who, Goodput: gets, OtherGoodput: offered}}
		}
	}
	return worst, why
}

// margin returns the factor by which another waypoint must give more than this detour. A detour that was taken to
// measure it gives way for less.
func (t turn) margin(s *subflow) float64 {
	if s.why.Explored {
		return policy.SameFactor
	}
	return exchangeFactor
}

// mostLeft returns the most that a bulk connection may expect of a waypoint that it may take and does not use, and the
// waypoint. It ignores waypoints for which without returns true.
func (m *Manager) mostLeft(t turn, without func(waypoint string) bool) (most float64, who string) {
	g := m.together(t.now)
	for o := range m.spare(t) {
		r, ok := m.detours.history.of(o.Waypoint, t.server)
		if !ok || !within(r.goodputAt, t.now, exchangeTrusts) || r.isShunned(t.now) || m.detours.sharesWithDirect(o.Waypoint, t.server) || without(o.Waypoint) {
			continue
		}
		if left := g.left(o.Waypoint, t.server, r.goodput, t.now); left > most {
			most, who = left, o.Waypoint
		}
	}
	return most, who
}

// exchangeable reports whether the subflow is a detour that may be exchanged for another.
func (m *Manager) exchangeable(t turn, s *subflow) bool {
	return s.detour != nil && t.ours(s) && s.why != nil && s.crowded.IsZero() && !s.isLossy() && !s.isSpent() && !s.isSurplus() &&
		!m.detours.steering.wants(s.detour.Waypoint)
}

// spare returns an iterator over the detours that the connection may take through waypoints that it does not use and
// that are not loaded.
func (m *Manager) spare(t turn) iter.Seq[*offered] {
	return func(yield func(*offered) bool) {
		for o := range m.unused(t) {
			if m.detours.loads.of(viaOf(&o.Detour), t.now).IsZero() && !yield(o) {
				return
			}
		}
	}
}

// unused returns an iterator over the detours that the connection may take through waypoints that it does not use. It
// includes loaded waypoints.
func (m *Manager) unused(t turn) iter.Seq[*offered] {
	return func(yield func(*offered) bool) {
		for o := range m.detours.leading(t.server) {
			remote, ok := m.detours.target(t.conn, &o.Detour)
			if !ok || t.taken(&o.Detour, remote) || t.has(func(s *subflow) bool { return s.waypoint() == o.Waypoint }) ||
				m.detours.budget.Spares(o.Waypoint) {
				continue
			}
			if until, why := m.detours.rests(t, o); t.now.Before(until) || why.Lasts() {
				continue
			}
			if !yield(o) {
				return
			}
		}
	}
}
