package experiment

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/scenario"
)

func parseAgent(t *testing.T, h scenario.Host, plan agentPlan) *config.Config {
	t.Helper()
	data, err := plan.config(h, func(host string) []netip.Addr {
		return []netip.Addr{map[string]netip.Addr{
			"w1": netip.MustParseAddr("10.0.1.1"), "w2": netip.MustParseAddr("10.0.2.1"),
		}[host]}
	}).TOML(h.Name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("agent.toml", data)
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return c
}

func TestAgentConfig(t *testing.T) {
	both := []scenario.Role{scenario.RoleClient, scenario.RoleWaypoint}
	c := parseAgent(t, scenario.Host{Name: "w2", Roles: both}, agentPlan{
		subflows: 3, via: []string{"w1", "w2"},
		kinds: []scenario.Detour{scenario.InBand}, offers: []scenario.Detour{scenario.InBand, scenario.WireGuard},
	})
	want := []config.Peer{{Name: "w1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.1")}, Port: 45672}}
	if diff := cmp.Diff(want, c.Client.Waypoints, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("waypoints, oneself left out (-want +got):\n%s", diff)
	}
	if c.Client.Subflows != 3 || !c.Has(config.RoleClient) || !c.Has(config.RoleWaypoint) {
		t.Errorf("subflows %d, roles %v", c.Client.Subflows, c.Roles)
	}
	if !slices.Equal(c.Client.Kinds, []config.Kind{config.InBand}) || !slices.Equal(c.Waypoint.Offers, []config.Kind{config.InBand, config.WireGuard}) {
		t.Errorf("uses %v, offers %v", c.Client.Kinds, c.Waypoint.Offers)
	}
	// The lab's own addresses are private ones: they must be neither left out
	// by the client nor refused by the waypoint.
	server := netip.MustParseAddr("10.0.9.1")
	for _, p := range c.Client.Exclude {
		if p.Contains(server) {
			t.Errorf("the client leaves out %v", p)
		}
	}
	if len(c.Waypoint.Allow) == 0 || !c.Waypoint.Allow[0].Contains(server) {
		t.Errorf("the waypoint allows %v", c.Waypoint.Allow)
	}
}

func TestAgentConfigOfConverters(t *testing.T) {
	plan := agentPlan{
		subflows: 2, via: []string{"w1"}, kinds: []scenario.Detour{scenario.Mapped}, offers: []scenario.Detour{scenario.Mapped},
		converter: scenario.ConvertAuto, converters: []string{"w1", "w2"}, proxy: true,
	}
	c := parseAgent(t, scenario.Host{Name: "client", Roles: []scenario.Role{scenario.RoleClient}}, plan)
	if len(c.Client.Waypoints) != 2 || c.Client.Converter.Use != config.ConvertAuto || c.Client.Converter.Proxy != proxyAddress {
		t.Errorf("a client lists %v and uses converters so: %+v", c.Client.Waypoints, c.Client.Converter)
	}
	for _, test := range []struct {
		roles []scenario.Role
		want  []config.Kind
	}{
		{[]scenario.Role{scenario.RoleWaypoint}, []config.Kind{config.Mapped}},
		{[]scenario.Role{scenario.RoleConverter}, []config.Kind{config.Converter}},
		{[]scenario.Role{scenario.RoleConverter, scenario.RoleWaypoint}, []config.Kind{config.Mapped, config.Converter}},
	} {
		c := parseAgent(t, scenario.Host{Name: "w1", Roles: test.roles}, plan)
		if !slices.Equal(c.Waypoint.Offers, test.want) || len(c.Waypoint.Allow) == 0 {
			t.Errorf("%v offers %v and allows %v", test.roles, c.Waypoint.Offers, c.Waypoint.Allow)
		}
	}
}

func TestAgentConfigOverlay(t *testing.T) {
	h := scenario.Host{Name: "client", Roles: []scenario.Role{scenario.RoleClient}, DCol: map[string]any{
		"log_level": "debug", "client": map[string]any{"tls_ports": []any{}, "kinds": []any{"wireguard", "mapped"}},
	}}
	c := parseAgent(t, h, agentPlan{subflows: 2, via: []string{"w1"}})
	if c.LogLevel != "debug" || len(c.Client.TLSPorts) != 0 || len(c.Client.Waypoints) != 1 || c.Client.Subflows != 2 {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(c.Client.Kinds, []config.Kind{config.WireGuard, config.Mapped}) {
		t.Errorf("uses %v: the scenario's own word does not win", c.Client.Kinds)
	}
	over := map[string]any{"client": map[string]any{"subflows": 4}}
	c = parseAgent(t, h, agentPlan{subflows: 2, via: []string{"w1"}, over: over})
	if c.Client.Subflows != 4 || c.LogLevel != "debug" || len(c.Client.TLSPorts) != 0 {
		t.Errorf("what a procedure says is not laid over what its host says: %+v", c)
	}
}
