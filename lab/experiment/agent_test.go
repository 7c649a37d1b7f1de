package experiment

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/scenario"
)

func parseAgent(t *testing.T, h scenario.Host, plan agentPlan) *config.Config {
	t.Helper()
	data, err := agentConfig(h, plan, func(host string) []netip.Addr {
		return []netip.Addr{map[string]netip.Addr{
			"w1": netip.MustParseAddr("10.0.1.1"), "w2": netip.MustParseAddr("10.0.2.1"),
		}[host]}
	})
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
	c := parseAgent(t, scenario.Host{Name: "w2", Roles: both}, agentPlan{subflows: 3, via: []string{"w1", "w2"}})
	want := []config.Peer{{Name: "w1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.1")}, Port: 45672}}
	if diff := cmp.Diff(want, c.Client.Waypoints, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("waypoints, oneself left out (-want +got):\n%s", diff)
	}
	if c.Client.Subflows != 3 || !c.Has(config.RoleClient) || !c.Has(config.RoleWaypoint) {
		t.Errorf("subflows %d, roles %v", c.Client.Subflows, c.Roles)
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

func TestAgentConfigOverlay(t *testing.T) {
	h := scenario.Host{Name: "client", Roles: []scenario.Role{scenario.RoleClient}, DCol: map[string]any{
		"log_level": "debug", "client": map[string]any{"tls_ports": []any{}},
	}}
	c := parseAgent(t, h, agentPlan{subflows: 2, via: []string{"w1"}})
	if c.LogLevel != "debug" || len(c.Client.TLSPorts) != 0 || len(c.Client.Waypoints) != 1 || c.Client.Subflows != 2 {
		t.Errorf("%+v", c)
	}
}

func TestNotUp(t *testing.T) {
	status := api.Status{Client: &api.Using{Waypoints: []api.Waypoint{
		{Name: "w1", State: "up"}, {Name: "w2", State: "down", Why: "no answer"}, {Name: "w3", State: "connecting"},
	}}}
	if err := notUp(status, []string{"w1"}); err != nil {
		t.Errorf("w1 is up: %v", err)
	}
	if err := notUp(status, nil); err != nil {
		t.Errorf("none is asked for: %v", err)
	}
	if err := notUp(status, []string{"w1", "w2"}); err == nil || !strings.Contains(err.Error(), "waypoint w2 is down: no answer") {
		t.Errorf("w2 is down: %v", err)
	}
	if err := notUp(api.Status{}, []string{"w1"}); err == nil {
		t.Error("an agent without the client role is ready")
	}
}
