package serving

import (
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// Reconfigure takes over the settings of c that config.Reloaded does.
func (s *Serving) Reconfigure(c *config.Config) error {
	operator := c.Waypoint
	err := s.handler.way.Reconfigure(waypoint.Terms{
		Allow: operator.Allow, Deny: operator.Deny, DenyPorts: deniedPorts(operator), Hours: operator.Hours,
		Members: memberTerms(operator),
	})
	if err != nil {
		return err
	}
	s.terms.Store(&operator)
	s.server.Tell() // members may be offered other kinds
	return nil
}

// mappedOnly reports whether the operator limits a member's servers, so that it can have mapped detours only.
func (s *Serving) mappedOnly(member string) bool {
	return memberTerms(*s.terms.Load())[member].Servers.Limits()
}

// memberTerms returns the operator's limits of single members, by name.
func memberTerms(operator config.Waypoint) map[string]waypoint.MemberTerms {
	terms := make(map[string]waypoint.MemberTerms, len(operator.Members))
	for _, m := range operator.Members {
		t := waypoint.MemberTerms{Servers: egress.Narrowing{Only: m.Only, Deny: m.Deny}, Hours: m.Hours, Quota: uint64(m.MonthlyQuota)}
		for _, port := range m.Ports {
			t.Servers.Ports = append(t.Servers.Ports, uint16(port))
		}
		terms[m.Name] = t
	}
	return terms
}
