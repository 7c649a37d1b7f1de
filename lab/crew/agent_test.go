package crew

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

func TestReadyNeedsSessions(t *testing.T) {
	status := api.Status{Client: &api.Using{Waypoints: []api.Waypoint{
		{Name: "w1", State: "up"}, {Name: "w2", State: "down", Why: "no answer"}, {Name: "w3", State: "connecting"},
	}}}
	if err := Ready(status, []string{"w1"}); err != nil {
		t.Errorf("w1 is up: %v", err)
	}
	if err := Ready(status, nil); err != nil {
		t.Errorf("none is asked for: %v", err)
	}
	if err := Ready(status, []string{"w1", "w2"}); err == nil || !strings.Contains(err.Error(), "waypoint w2 is down: no answer") {
		t.Errorf("w2 is down: %v", err)
	}
	if err := Ready(status, []string{"w4"}); err == nil || !strings.Contains(err.Error(), "w4 is not known") {
		t.Errorf("w4 is unknown: %v", err)
	}
	if err := Ready(api.Status{}, []string{"w1"}); err == nil {
		t.Error("an agent without the client role is ready")
	}
}

func TestReadyNeedsKinds(t *testing.T) {
	kinds := func(k ...api.WaypointKind) []api.WaypointKind { return k }
	status := api.Status{Client: &api.Using{Waypoints: []api.Waypoint{
		{Name: "w1", State: "up", Kinds: kinds(api.WaypointKind{Kind: "in-band", State: "ready"}, api.WaypointKind{Kind: "openvpn", State: "not-offered"})},
		{Name: "w1", State: "up", Kinds: kinds(api.WaypointKind{Kind: "in-band", State: "down"}, api.WaypointKind{Kind: "openvpn", State: "not-offered"})},
		{Name: "w2", State: "up", Kinds: kinds(api.WaypointKind{Kind: "wireguard", State: "down", Why: "no handshake"}, api.WaypointKind{Kind: "in-band", State: "ready"})},
		{Name: "w2", State: "up", Kinds: kinds(api.WaypointKind{Kind: "wireguard", State: "down"})},
	}}}
	for _, test := range []struct {
		via  []string
		kind string
		want string // "": it is ready
	}{
		{[]string{"w1", "w2"}, "in-band", ""},
		{[]string{"w1", "w2"}, AnyKind, ""},
		{nil, "wireguard", ""},
		{[]string{"w2"}, "wireguard", "no wireguard detour through waypoint w2: it is down: no handshake"},
		{[]string{"w1"}, "openvpn", "no openvpn detour through waypoint w1: it is not-offered"},
		{[]string{"w1"}, "mapped", "no mapped detour through waypoint w1: it is unknown: its agent says nothing of it"},
	} {
		got := ""
		if err := Ready(status, test.via, test.kind); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s through %v: %q, want %q", test.kind, test.via, got, test.want)
		}
	}
}

func TestConverterReady(t *testing.T) {
	status := func(relay *api.Relay, converters ...string) api.Status {
		s := api.Status{Client: &api.Using{}, Relay: relay}
		for _, name := range converters {
			s.Client.Converting.Converters = append(s.Client.Converting.Converters, api.Converter{Name: name})
		}
		return s
	}
	relay := func(parts ...api.RelayPart) *api.Relay { return &api.Relay{Parts: parts} }
	listening := relay(api.RelayPart{Name: "programs", Listen: "x"}, api.RelayPart{Name: "proxy", Listen: "127.0.0.1:1080"})
	for _, test := range []struct {
		name   string
		status api.Status
		proxy  bool
		want   string // "": it is ready
	}{
		{"all is there", status(listening, "c1", "c2"), true, ""},
		{"no proxy is needed", status(relay(), "c2", "c1"), false, ""},
		{"one has not answered", status(listening, "c1"), true, "not admitted to the converter of c2"},
		{"no relay", status(nil, "c1", "c2"), false, "the agent has no relay to converters"},
		{"no proxy", status(relay(api.RelayPart{Name: "programs", Listen: "x"}), "c1", "c2"), true, "the proxy does not listen yet"},
		{"its port is taken", status(relay(api.RelayPart{Name: "proxy", Problem: "in use"}), "c1", "c2"), true, "the proxy does not listen: in use"},
		{"no client", api.Status{Relay: listening}, true, "the agent has no client role"},
	} {
		got := ""
		if err := ConverterReady(test.status, []string{"c1", "c2"}, test.proxy); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestOverlay(t *testing.T) {
	base := Settings{"name": "a", "client": Settings{"subflows": 2, "exclude": []string{}}}
	got := Overlay(base, Settings{"client": Settings{"subflows": 3}, "log_level": "debug"})
	client := got["client"].(Settings)
	if got["name"] != "a" || got["log_level"] != "debug" || client["subflows"] != 3 || client["exclude"] == nil {
		t.Errorf("%v", got)
	}
	if base["client"].(Settings)["subflows"] != 2 || base["log_level"] != nil {
		t.Errorf("the settings below were changed: %v", base)
	}
}
