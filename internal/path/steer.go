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

// Steered changes the operator's Steering. New subflows follow it. Up to mostSteered connections exchange a detour for
// one through a waypoint in Use. Subflows through waypoints that are not allowed any more end as soon as their connections have others.
type Steered struct{ Steering Steering }

func (Steered) event() {}

// Allows reports whether the operator allows a waypoint.
func (s *Steering) Allows(waypoint string) bool {
	return !slices.Contains(s.Avoid, waypoint) && (!s.Only || slices.Contains(s.Use, waypoint))
}

func (s *Steering) wants(waypoint string) bool { return slices.Contains(s.Use, waypoint) }

// mostSteered is the number of connections that exchange a detour at once because the operator wants another waypoint. More
// could exceed what a waypoint accepts in a second, and would then take others.
const mostSteered = 50

// steered applies the operator's new Steering to every connection.
func (m *Manager) steered(ev Steered, now time.Time) {
	m.detours.steering = ev.Steering
	left := mostSteered
	for _, c := range m.conns.all() {
		c.leave(func(d *Detour) bool { return !ev.Steering.Allows(d.Waypoint) }, SubflowReason{Cause: CauseUnwanted})
		t := m.turn(c, now)
		if left > 0 && m.weighing(t).exchangeForWanted() {
			left--
		}
		m.step(t)
	}
}

// exchangeForWanted marks a detour for an exchange if the connection can use a waypoint instead that the operator wants. It
// is the detour that carries least. It reports whether it marked one.
func (w weighing) exchangeForWanted() bool {
	p, ok := w.rule.Policy.(policy.Detours)
	if !ok || !w.managed() || w.isShort() && !w.capped {
		return false // a connection that has free places needs no exchange
	}
	wanted := false
	for o := range w.spare() {
		usable := len(p.Order) == 0 || slices.Contains(p.Order, o.Kind)
		wanted = wanted || usable && w.detours.steering.wants(o.Waypoint) && !w.isAvoided(o)
	}
	others := w.where(w.exchangeable)
	if !wanted || len(others) == 0 {
		return false
	}
	s := slices.MinFunc(others, func(a, b *subflow) int { return cmp.Compare(w.gets(a), w.gets(b)) })
	w.planExchange(s, SubflowReason{Cause: CauseOtherWanted})
	return true
}
