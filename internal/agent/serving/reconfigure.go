package serving

import (
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// Reconfigure takes over the settings of c that config.Reloaded does.
func (s *Serving) Reconfigure(c *config.Config) error {
	operator := c.Waypoint
	err := s.handler.way.Reconfigure(waypoint.Terms{
		Allow: operator.Allow, Deny: operator.Deny, DenyPorts: deniedPorts(operator), Hours: operator.Hours,
	})
	if err == nil {
		s.terms.Store(&operator)
	}
	return err
}
