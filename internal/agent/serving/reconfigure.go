package serving

import (
	"maps"
	"reflect"
	"slices"

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
	// What a member was granted may have ended, and what it was refused it may have now: its client must not wait until its leases are
	// over, as nothing tells it.
	for _, member := range changedTerms(s.terms.Load().Members, operator.Members) {
		s.handler.server.Restart(member, "the operator has changed what this member may use")
	}
	s.terms.Store(&operator)
	return nil
}

// changedTerms returns the names of the members whose terms differ, sorted.
func changedTerms(before, now []config.MemberTerms) (names []string) {
	all := make(map[string][2]config.MemberTerms)
	for i, list := range [2][]config.MemberTerms{before, now} {
		for _, m := range list {
			both := all[m.Name]
			both[i] = m
			all[m.Name] = both
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if both := all[name]; !reflect.DeepEqual(both[0], both[1]) {
			names = append(names, name)
		}
	}
	return names
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
