package path

import (
	"slices"
	"time"
)

// Steering lists the waypoints that the operator wants taken first or never, for all destinations. The zero value
// leaves the choice to the policy.
type Steering struct {
	// Use lists the waypoints to take before all others.
	Use []string
	// Only is set if no waypoint but those in Use may be taken.
	Only bool
	// Avoid lists the waypoints that may not be taken, even if they are in Use.
	Avoid []string
}

// Steered changes the operator's will. New subflows follow it. Existing ones through a waypoint that may not be
// taken any more end as soon as their connection can do without them.
type Steered struct{ Steering Steering }

func (Steered) event() {}

// Allows reports whether a waypoint may be taken.
func (s *Steering) Allows(waypoint string) bool {
	return !slices.Contains(s.Avoid, waypoint) && (!s.Only || slices.Contains(s.Use, waypoint))
}

func (s *Steering) wants(waypoint string) bool { return slices.Contains(s.Use, waypoint) }

// steered has every connection follow the operator's new will.
func (m *Manager) steered(ev Steered, now time.Time) {
	m.detours.steering = ev.Steering
	for _, c := range m.conns.all() {
		c.leave(func(d *Detour) bool { return !ev.Steering.Allows(d.Waypoint) })
		m.step(m.turn(c, now))
	}
}
