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
func (w weighing) exchangeSlower() bool {
	a := w.attention
	if w.kind == measure.Short || w.kind == measure.Bulk && w.isTrying() || !a.comparedAt.IsZero() && w.now.Sub(a.comparedAt) < drawsEvery {
		return false
	}
	a.comparedAt = w.now
	var s *subflow
	var why SubflowReason
	queued := false
	if w.kind == measure.Bulk {
		s, why = w.poorer()
	} else {
		s, why, queued = w.slower()
	}
	if s == nil {
		a.slowerSince = time.Time{}
		return false
	}
	if a.slowerSince.IsZero() {
		a.slowerSince = w.now
	}
	since := w.now.Sub(a.slowerSince)
	soon := w.failedTry(s) || queued && since >= queuedFor
	if w.exchangedLately() || w.fledLately() || !soon && (since < exchangeAfter || w.views.drawAt(w.token, s.detour.Waypoint, w.now)%exchangeOneIn != 0) {
		return false
	}
	a.slowerSince = time.Time{}
	w.planExchange(s, why)
	if w.kind == measure.Bulk {
		w.together().leaves(s.detour.Waypoint, w.server, w.now)
	}
	return true
}

// planExchange marks a detour for an exchange, and records the reason.
func (w weighing) planExchange(s *subflow, why SubflowReason) {
	s.crowd(w.now)
	w.exchanged = w.now
	w.planEnd(s, why)
	w.exchanges++
}

// failedTry reports whether the detour was taken to measure it, and the measurement is done.
func (w weighing) failedTry(s *subflow) bool {
	return s.why.Explored && w.now.Sub(s.since) >= exploresFor
}

// slower returns the detour whose messages would wait much less through another waypoint, or nil, and the comparison. queued
// is set if that is so only because they wait behind this host's bulk traffic. Other hosts do not move then.
func (w weighing) slower() (worst *subflow, why SubflowReason, queued bool) {
	best, who, known := w.bestSpare()
	if direct, _, ok := w.detours.waits(w.turn, ""); !known || !ok || best >= direct {
		return nil, why, false
	}
	isSlow := func(wait time.Duration) bool { return float64(best+exchangeBy)*exchangeFactor < float64(wait) }
	var longest time.Duration
	for _, s := range w.subflows {
		if !w.exchangeable(s) {
			continue
		}
		wait, queue, known := w.detours.waits(w.turn, s.detour.Waypoint)
		if known && isSlow(wait) && wait > longest {
			worst, longest, queued = s, wait, !isSlow(wait-queue)
		}
	}
	return worst, SubflowReason{Cause: CauseSlower, Other: &policy.Comparison{Waypoint: who, Wait: longest, OtherWait: best, Measured: true}}, queued
}

// bestSpare returns the shortest wait through the waypoints that the connection may take and does not use.
func (w weighing) bestSpare() (best time.Duration, who string, known bool) {
	for o := range w.spare() {
		if wait, _, ok := w.detours.waits(w.turn, o.Waypoint); ok && (!known || wait < best) {
			best, who, known = wait, o.Waypoint, true
		}
	}
	return best, who, known
}

// poorer returns the detour of a bulk connection that gets much less than another waypoint would give, or nil, and the
// comparison.
func (w weighing) poorer() (worst *subflow, why SubflowReason) {
	g := w.together()
	offered, who := w.mostLeft(w.lost)
	most := offered
	for _, s := range w.subflows {
		if !w.exchangeable(s) {
			continue
		}
		gets := w.gets(s)
		if gets = g.share(gets, s.waypoint(), w.server); gets > 0 && gets < most/w.margin(s) && s.pressed(w.now) {
			worst, most = s, gets*w.margin(s)
			why = SubflowReason{Cause: CauseGivesLess, Other: &policy.Comparison{Waypoint: who, Goodput: gets, OtherGoodput: offered}}
		}
	}
	return worst, why
}

// margin returns the factor by which another waypoint must give more than this detour. A detour that was taken to
// measure it gives way for less.
func (w weighing) margin(s *subflow) float64 {
	if s.why.Explored {
		return policy.SameFactor
	}
	return exchangeFactor
}

// mostLeft returns the most that a bulk connection may expect of a waypoint that it may take and does not use, and the
// waypoint. It ignores waypoints for which without returns true.
func (w weighing) mostLeft(without func(waypoint string) bool) (most float64, who string) {
	g := w.together()
	for o := range w.spare() {
		r, ok := w.detours.history.of(o.Waypoint, w.server)
		if !ok || !within(r.goodputAt, w.now, exchangeTrusts) || r.isShunned(w.now) || w.detours.sharesWithDirect(o.Waypoint, w.server) || without(o.Waypoint) {
			continue
		}
		if left := g.left(o.Waypoint, w.server, r.goodput, w.now); left > most {
			most, who = left, o.Waypoint
		}
	}
	return most, who
}

// exchangeable reports whether the subflow is a detour that may be exchanged for another.
func (w weighing) exchangeable(s *subflow) bool {
	return s.detour != nil && w.ours(s) && s.why != nil && !s.isCrowded() && !s.isLossy() && !s.isSpent() && !s.isSurplus() &&
		!w.detours.steering.wants(s.detour.Waypoint)
}

// spare returns an iterator over the detours that the connection may take through waypoints that it does not use and
// that are not loaded.
func (w weighing) spare() iter.Seq[*offered] {
	return func(yield func(*offered) bool) {
		for o := range w.unused() {
			if w.detours.loads.of(viaOf(&o.Detour), w.now).IsZero() && !yield(o) {
				return
			}
		}
	}
}

// unused returns an iterator over the detours that the connection may take through waypoints that it does not use. It
// includes loaded waypoints.
func (w weighing) unused() iter.Seq[*offered] {
	return func(yield func(*offered) bool) {
		for o := range w.detours.leading(w.server) {
			remote, ok := w.detours.target(w.conn, &o.Detour)
			if !ok || w.taken(&o.Detour, remote) || w.has(func(s *subflow) bool { return s.waypoint() == o.Waypoint }) ||
				w.detours.budget.Spares(o.Waypoint) {
				continue
			}
			if until, why := w.detours.rests(w.turn, o); w.now.Before(until) || why.Lasts() {
				continue
			}
			if !yield(o) {
				return
			}
		}
	}
}
