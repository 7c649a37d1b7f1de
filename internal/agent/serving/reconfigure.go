package serving

import (
	"slices"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// Reconfigure takes over those settings of c that config.Reloaded takes over.
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
	members := s.terms.Load().Members
	i := slices.IndexFunc(members, func(m config.MemberTerms) bool { return m.Name == member })
	return i >= 0 && narrowing(&members[i]).Limits()
}

// memberTerms returns the operator's limits of single members, by name.
func memberTerms(operator config.Waypoint) map[string]waypoint.MemberTerms {
	terms := make(map[string]waypoint.MemberTerms, len(operator.Members))
	for i := range operator.Members {
		m := &operator.Members[i]
		terms[m.Name] = waypoint.MemberTerms{Servers: narrowing(m), Hours: m.Hours, Quota: uint64(m.MonthlyQuota)}
	}
	return terms
}

// narrowing returns the operator's limits on the servers that a member may reach.
func narrowing(m *config.MemberTerms) egress.Narrowing {
	n := egress.Narrowing{Only: m.Only, Deny: m.Deny}
	for _, port := range m.Ports {
		n.Ports = append(n.Ports, uint16(port))
	}
	return n
}
