package path

import (
	"slices"
	"time"
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

// Steered changes the operator's Steering. New subflows follow it. Existing ones through waypoints that are not
// allowed any more end as soon as their connections have others.
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
		m.step(m.turn(c, now))
	}
}
