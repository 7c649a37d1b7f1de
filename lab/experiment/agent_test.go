package experiment

import (
	"net/netip"
	"slices"
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

func TestNotReady(t *testing.T) {
	kinds := func(k ...api.WaypointKind) []api.WaypointKind { return k }
	status := api.Status{Client: &api.Using{Waypoints: []api.Waypoint{
		{Name: "w1", State: "up", Kinds: kinds(api.WaypointKind{Kind: "in-band", State: "ready"}, api.WaypointKind{Kind: "openvpn", State: "not-offered"})},
		{Name: "w1", State: "up", Kinds: kinds(api.WaypointKind{Kind: "in-band", State: "down"}, api.WaypointKind{Kind: "openvpn", State: "not-offered"})},
		{Name: "w2", State: "up", Kinds: kinds(api.WaypointKind{Kind: "wireguard", State: "down", Why: "no handshake"}, api.WaypointKind{Kind: "in-band", State: "ready"})},
		{Name: "w2", State: "up", Kinds: kinds(api.WaypointKind{Kind: "wireguard", State: "down"})},
	}}}
	for _, test := range []struct {
		via  []string
		kind scenario.Detour
		want string // "": it is ready
	}{
		{[]string{"w1", "w2"}, scenario.InBand, ""},
		{[]string{"w1", "w2"}, scenario.NoDetour, ""},
		{nil, scenario.WireGuard, ""},
		{[]string{"w2"}, scenario.WireGuard, "no wireguard detour through waypoint w2: it is down: no handshake"},
		{[]string{"w1"}, scenario.OpenVPN, "no openvpn detour through waypoint w1: it is not-offered"},
		{[]string{"w1"}, scenario.Mapped, "no mapped detour through waypoint w1: it is unknown: its agent says nothing of it"},
	} {
		got := ""
		if err := notReady(status, test.via, test.kind); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s through %v: %q, want %q", test.kind, test.via, got, test.want)
		}
	}
}
