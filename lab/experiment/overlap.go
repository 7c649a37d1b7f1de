package experiment

import (
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
)

// overlaps returns warnings about detours that gain nothing because they share links with the direct path. It ignores
// links that all paths must share, such as a host's only link. It warns of a shared link if another path avoids it, or
// if the detour avoids no link of the direct path.
func overlaps(s *scenario.Scenario) []string {
	if len(s.Procedures) == 0 {
		return nil
	}
	spec := specOf(s, Options{})
	client, server := s.Workload.Client, s.Workload.Server
	direct, err := spec.Route(client, server)
	if err != nil {
		return nil // a path exists, as was checked before; a NAT may block it
	}
	var warnings []string
	for _, w := range usedWaypoints(s) {
		if w == client || w == server {
			continue
		}
		there, errThere := spec.Route(client, w)
		back, errBack := spec.Route(w, server)
		if errThere != nil || errBack != nil {
			continue
		}
		detour := slices.Concat(there, back)
		shared := slices.DeleteFunc(slices.Clone(direct), func(link string) bool { return !slices.Contains(detour, link) })
		avoidable := slices.DeleteFunc(slices.Clone(shared), func(link string) bool { return !connectedWithout(spec, client, server, link) })
		switch {
		case len(shared) == len(direct):
			warnings = append(warnings, fmt.Sprintf("the detour through %s runs over the whole direct path (%s): it gains nothing; "+
				"give %s a link of its own to beyond it", w, strings.Join(direct, ", "), w))
		case len(avoidable) > 0:
			warnings = append(warnings, fmt.Sprintf("the detour through %s (%s) runs over %s of the direct path: what happens there happens to both; "+
				"lower the cost of the links that shall be its way, or raise that of these", w, strings.Join(detour, ", "), strings.Join(avoidable, ", ")))
		}
	}
	return warnings
}

// usedWaypoints returns the waypoints that some procedure uses.
func usedWaypoints(s *scenario.Scenario) []string {
	return slices.DeleteFunc(s.WithRole(scenario.RoleWaypoint), func(w string) bool {
		return !slices.ContainsFunc(s.Procedures, func(p scenario.Procedure) bool { return slices.Contains(p.Via, w) })
	})
}

// connectedWithout reports whether links other than without connect two hosts. Any host may be in between.
func connectedWithout(spec testbed.Spec, from, to, without string) bool {
	spec.Links = slices.DeleteFunc(slices.Clone(spec.Links), func(l testbed.LinkSpec) bool { return l.Name == without })
	spec.Hosts = slices.Clone(spec.Hosts)
	for i := range spec.Hosts {
		spec.Hosts[i].Forward = true // waypoints do, for detours
		spec.Hosts[i].NAT, spec.Hosts[i].IPv6Only = testbed.NAT{}, false
	}
	_, err := spec.Route(from, to)
	return err == nil
}

// warn logs likely mistakes of the scenario's author.
func (o Options) warn(s *scenario.Scenario) {
	for _, warning := range overlaps(s) {
		fmt.Fprintf(o.Stderr, "warning: %s: %s\n", s.Name, warning)
	}
}
