package path

import (
	"cmp"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// Steering lists the waypoints that the operator wants to be taken first or never, for all destinations. The zero
// value leaves the choice to the policy.
type Steering struct {
	// Use lists the waypoints to take before all others.
	Use []string
	// Only is set if only waypoints in Use may be taken.
	Only bool
	// Avoid lists the waypoints that may not be taken, even if they are in Use.
	Avoid []string
}

// Steered changes the operator's Steering. New subflows follow it. Open connections exchange a detour for one through a
// waypoint in Use. Subflows through waypoints that are not allowed any more end as soon as their connections have others.
type Steered struct{ Steering Steering }

func (Steered) event() {}

// Allows reports whether the operator allows a waypoint.
func (s *Steering) Allows(waypoint string) bool {
	return !slices.Contains(s.Avoid, waypoint) && (!s.Only || slices.Contains(s.Use, waypoint))
}

func (s *Steering) wants(waypoint string) bool { return slices.Contains(s.Use, waypoint) }

// steersEvery is the mean time between two connections that exchange a detour because the operator wants another waypoint. A
// waypoint accepts only some joins a second from one member (waypoint.connections_per_second).
const steersEvery = time.Second / 25

// steered applies the operator's new Steering to every connection.
func (m *Manager) steered(ev Steered, now time.Time) {
	m.detours.steering = ev.Steering
	for _, c := range m.conns.all() {
		c.leave(func(d *Detour) bool { return !ev.Steering.Allows(d.Waypoint) }, SubflowReason{Cause: CauseUnwanted})
		m.step(m.turn(c, now))
	}
}

// follow lets the connection exchange a detour for one through a waypoint that the operator wants. The connection first waits for
// a random time, so that not all connections join through the waypoint at once.
func (w weighing) follow() {
	if len(w.detours.steering.Use) == 0 {
		w.follows = 0
		return
	}
	available := w.hasSpareWanted()
	w.keepWithoutWanted(available)
	if w.busy() {
		return
	}
	s := w.leastUseful()
	if !available || s == nil {
		w.follows = 0
		return
	}
	age := w.now.Sub(w.since)
	if w.follows == 0 {
		w.follows = age + time.Duration(w.views.drawAt(w.token, "", w.now)%uint64(steersEvery*time.Duration(w.conns.len())))
	}
	if age >= w.follows {
		w.follows = 0
		s.crowd(w.now)
		w.planEnd(s, SubflowReason{Cause: CauseOtherWanted})
	}
}

// keepWithoutWanted lets detours that were to be exchanged for wanted ones stay, if these cannot come any more. Other waypoints
// would take their places otherwise.
func (w weighing) keepWithoutWanted(available bool) {
	if available || w.departures == nil {
		return
	}
	for _, p := range slices.Clone(w.departures.planned) {
		comes := func(x *subflow) bool {
			return x.detour != nil && w.detours.steering.wants(x.detour.Waypoint) && !x.since.Before(p.crowdedAt())
		}
		if p.why.Cause == CauseOtherWanted && p.isCrowded() && !p.leaving && !w.has(comes) {
			p.crowded = 0
			w.takePlanned(p.subflow)
		}
	}
}

// hasSpareWanted reports whether the connection can take a detour through a waypoint that the operator wants.
func (w weighing) hasSpareWanted() bool {
	p, ok := w.rule.Policy.(policy.Detours)
	if !ok || w.isShort() && !w.capped {
		return false // a connection that has free places needs no exchange
	}
	for o := range w.spare() {
		usable := len(p.Order) == 0 || slices.Contains(p.Order, o.Kind)
		if usable && w.detours.steering.wants(o.Waypoint) && !w.isAvoided(o) {
			return true
		}
	}
	return false
}

// leastUseful returns the detour that carries least of those that may be exchanged, or nil if there is none.
func (w weighing) leastUseful() *subflow {
	others := w.where(w.exchangeable)
	if len(others) == 0 {
		return nil
	}
	return slices.MinFunc(others, func(a, b *subflow) int { return cmp.Compare(w.gets(a), w.gets(b)) })
}
