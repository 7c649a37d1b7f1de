package experiment

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/scenario"
)

// agentPlan describes the configuration of an agent.
type agentPlan struct {
	// As a client: the number of subflows, their waypoints, and the kinds of detours, preferred first. 0
	// subflows means the agent's default. So do empty kinds and offers if ownKinds is set.
	subflows int
	ownKinds bool
	via      []string
	kinds    []scenario.Detour
	// needs, unless empty, is the kind that must be ready before anything begins.
	needs scenario.Detour
	// offers are the kinds that it offers as a waypoint.
	offers []scenario.Detour
	// coordinator is the collective's coordinator, as NAME@ADDRESS:PORT. Without one, members know each other
	// from their configuration.
	coordinator string
}

// checkAgents finds mistakes in the scenario's dcol tables before anything is
// built, with addresses made up.
func checkAgents(s *scenario.Scenario) error {
	somewhere := func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.1")} }
	for _, h := range s.Hosts {
		if !h.RunsAgent() {
			continue
		}
		plan := agentPlan{subflows: 2, via: s.WithRole(scenario.RoleWaypoint), kinds: scenario.Kinds(), offers: scenario.Kinds()}
		if name := s.Coordinator(); name != "" {
			plan.coordinator = coordinatorAt(name, somewhere(name)[0])
		}
		data, err := agentConfig(h, plan, somewhere)
		if err != nil {
			return err
		}
		if _, err := config.Parse(fmt.Sprintf("the agent's configuration of %s", h.Name), data); err != nil {
			return fmt.Errorf("%w\n(the scenario's host.dcol is laid over what the lab writes)", err)
		}
	}
	return nil
}

// agentConfig writes the configuration of a host's agent.
func agentConfig(h scenario.Host, plan agentPlan, addresses func(host string) []netip.Addr) ([]byte, error) {
	var roles []string
	c := map[string]any{
		"name": h.Name,
		"identity": map[string]any{
			"certificate": "/etc/dcol/host.crt", "key": "/etc/dcol/host.key",
			"ca": "/etc/dcol/ca.crt", "crl": "/etc/dcol/ca.crl",
		},
	}
	if h.Has(scenario.RoleClient) {
		roles = append(roles, "client")
		waypoints := []map[string]any{}
		for _, name := range without(plan.listed(), h.Name) {
			waypoints = append(waypoints, map[string]any{"name": name, "addresses": addresses(name)})
		}
		client := map[string]any{
			"waypoint": waypoints,
			"exclude":  []string{}, // by default private addresses, which the lab's are
		}
		if plan.subflows > 0 {
			client["subflows"] = plan.subflows
		}
		plan.say(client, "kinds", plan.kinds)
		c["client"] = client
	}
	if h.Has(scenario.RoleWaypoint) {
		roles = append(roles, "waypoint")
		waypoint := map[string]any{
			"allow": []string{"10.0.0.0/8", "fd00::/8"}, // the lab's
		}
		plan.say(waypoint, "offers", plan.offers)
		c["waypoint"] = waypoint
	}
	if plan.coordinator != "" {
		roles = plan.join(c, h, roles)
	}
	c["roles"] = roles
	data, err := toml.Marshal(overlay(c, h.DCol))
	if err != nil {
		return nil, fmt.Errorf("write the agent's configuration of %s: %w", h.Name, err)
	}
	return data, nil
}

// say adds a list of kinds to the configuration. An empty list becomes the kind without requirements, because
// a missing list would mean the agent's default.
func (p agentPlan) say(table map[string]any, key string, kinds []scenario.Detour) {
	switch {
	case len(kinds) > 0:
		table[key] = kinds
	case !p.ownKinds:
		table[key] = []scenario.Detour{scenario.Mapped}
	}
}

// without returns a list of names without one.
func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}

// overlay lays a table over another, table by table.
func overlay(base, over map[string]any) map[string]any {
	for k, v := range over {
		sub, isTable := v.(map[string]any)
		if below, ok := base[k].(map[string]any); ok && isTable {
			base[k] = overlay(below, sub)
			continue
		}
		base[k] = v
	}
	return base
}
