package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file lets a connection that screens (screen.go) have one detour more than its policy allows, if the server has a place
// for it. Then its best detours carry on while the others are measured one after the other beside them. When the screening
// ends, the detour that carries least ends as well (surplus.go).
//
// The screening also ends if a waypoint is not measured for extraLasts, as when the program pauses. The extra detour must not stay,
// because a host whose address changes needs a free place at the server (docs/kernel-behaviour.md).

// extraLasts is the longest time for which the connection measures one waypoint beside its detours.
const extraLasts = 15 * time.Second

// mayAddExtra reports whether the connection may take another detour beside those in use. If it is not known how many subflows the
// server accepts, that is tried, unless the server may still count a subflow that has ended. A refusal would show nothing then.
func (t trying) mayAddExtra() bool {
	if t.hasExtra() || !t.has(t.presses) {
		return false
	}
	if room, known := t.places.room(t.turn); known && !t.places.onlyWitness(t.turn) {
		return room > 0
	}
	return t.further() < usualPlaces && (t.tryouts.extra || t.now.Sub(t.dropped) >= noticedAfter)
}

// screensBeside reports whether the connection screens beside its detours.
func (c *conn) screensBeside() bool { return c.tryouts != nil && c.tryouts.extra }

// awaitsExtra reports whether a place is free for an extra detour now.
func (t turn) awaitsExtra() bool { return t.screensBeside() && t.tryouts.waits(t.now) }

// hasExtra reports whether the connection has more detours than its policy allows. The policy's number includes the direct path.
func (t trying) hasExtra() bool {
	p, ok := t.rule.Policy.(policy.Detours)
	return ok && t.beside(func(s *subflow) bool { return s.detour != nil && !s.leaving && !s.isLossy() }) >= p.Subflows
}

// endExtra ends the detour that the connection has beyond its policy.
func (t trying) endExtra() {
	if t.screensBeside() {
		t.tryouts.extra, t.exceeds, t.tryouts.extraEnded = false, true, t.now
		t.conns.stepAgain(t.token)
	}
}

// extraEnds returns when a screening with an extra detour ends at the latest. ok is false if there is none.
func (t turn) extraEnds() (at time.Time, ok bool) {
	if !t.screensBeside() {
		return at, false
	}
	return t.tryouts.nextAt.Add(extraLasts), true
}

// endStaleExtra ends a screening with an extra detour in which nothing was measured for long.
func (t trying) endStaleExtra() {
	if at, ok := t.extraEnds(); ok && !t.now.Before(at) {
		t.endScreening()
	}
}
