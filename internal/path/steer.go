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

// Steered changes the operator's Steering. New subflows follow it. Connections exchange detours for ones through waypoints
// in Use. Subflows through waypoints that are not allowed any more end as soon as their connections have others.
type Steered struct{ Steering Steering }

func (Steered) event() {}

// Allows reports whether the operator allows a waypoint.
func (s *Steering) Allows(waypoint string) bool {
	return !slices.Contains(s.Avoid, waypoint) && (!s.Only || slices.Contains(s.Use, waypoint))
}

func (s *Steering) wants(waypoint string) bool { return slices.Contains(s.Use, waypoint) }

// steered applies the operator's new Steering to every connection.
func (m *Manager) steered(ev Steered, now time.Time) {
	m.detours.steering = ev.Steering
	for _, c := range m.conns.all() {
		c.leave(func(d *Detour) bool { return !ev.Steering.Allows(d.Waypoint) }, SubflowReason{Cause: CauseUnwanted})
		t := m.turn(c, now)
		m.weighing(t).exchangeForWanted()
		m.step(t)
	}
}

// exchangeForWanted marks detours for an exchange, one for each waypoint that the operator wants and that the connection
// can use instead. Those that carry least come first.
func (w weighing) exchangeForWanted() {
	if _, ok := w.rule.Policy.(policy.Detours); !ok || !w.managed() || w.isShort() && !w.capped {
		return // a connection that has free places needs no exchange
	}
	var wanted []string
	for o := range w.unused() {
		if w.detours.steering.wants(o.Waypoint) && !slices.Contains(wanted, o.Waypoint) {
			wanted = append(wanted, o.Waypoint)
		}
	}
	others := w.where(w.exchangeable)
	slices.SortStableFunc(others, func(a, b *subflow) int { return cmp.Compare(w.gets(a), w.gets(b)) })
	for _, s := range others[:min(len(others), len(wanted))] {
		s.crowded, w.exchanged = w.now, w.now
		w.planEnd(s, SubflowReason{Cause: CauseOtherWanted})
		w.exchanges++
	}
}
