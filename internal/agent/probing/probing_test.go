package probing

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

var (
	server = netip.MustParseAddrPort("203.0.113.7:443")
	bob    = netip.MustParseAddrPort("198.51.100.9:45672")
	vpn    = netip.MustParseAddrPort("198.51.100.9:1194")
	noon   = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
)

// trouble is the state of a client with a connection that fell back and a waypoint whose in-band detours fail.
func trouble() *api.Using {
	return &api.Using{
		Plain: []netip.AddrPort{server, server},
		Waypoints: []api.Waypoint{
			{Name: "bob", Addr: bob, Kinds: []api.WaypointKind{{Kind: "mapped", State: api.KindReady}, {Kind: "in-band", State: api.KindResting}}},
			{Name: "carol", Addr: server, Kinds: []api.WaypointKind{{Kind: "in-band", State: api.KindReady}}},
		},
	}
}

// keeper probes nothing, and counts.
func keeper(t *testing.T, dir string, probed *[]string) *Keeper {
	k := New(dir, func(context.Context) (api.Status, error) { return api.Status{Client: trouble()}, nil }, slog.New(slog.DiscardHandler))
	k.probe = func(_ context.Context, p api.ProbedPath) (api.ProbedPath, error) {
		*probed = append(*probed, p.Recipe+" to "+p.To.String())
		if p.Waypoint != "" {
			return p, errors.New("the cable is out")
		}
		p.Outcome, p.Confidence, p.Text = "changed", "certain", "MP_CAPABLE is removed between hop 3 and hop 4."
		return p, nil
	}
	return k
}

// Each path in trouble is probed once a day, also by the next agent; what was found is known for its server.
func TestOnceADay(t *testing.T) {
	dir := t.TempDir()
	var probed []string
	k := keeper(t, dir, &probed)
	for i := range 5 {
		k.look(t.Context(), noon.Add(time.Duration(i)*time.Minute))
	}
	if len(probed) != 2 || probed[0] != "mptcp to 203.0.113.7:443" || probed[1] != "in-band to 198.51.100.9:443" {
		t.Fatalf("probed %q", probed)
	}
	k = keeper(t, dir, &probed)
	k.look(t.Context(), noon.Add(23*time.Hour))
	if len(probed) != 2 {
		t.Errorf("probed %q again within a day", probed[2:])
	}
	known := k.Known(server.Addr())
	if len(known) != 2 || known[0].Text != "MP_CAPABLE is removed between hop 3 and hop 4." || known[1].Text != "The path could not be probed: the cable is out." {
		t.Errorf("known: %+v", known)
	}
	if known := k.Known(netip.MustParseAddr("192.0.2.1")); len(known) != 1 || known[0].Waypoint != "bob" {
		t.Errorf("known of another server: %+v", known)
	}
	k.look(t.Context(), noon.Add(24*time.Hour+time.Minute))
	if len(probed) != 3 || len(k.Known(server.Addr())) != 2 {
		t.Errorf("a day later probed %q, known %+v", probed, k.Known(server.Addr()))
	}
}

// What is probed follows from what does not come up. A session that has just begun is left alone.
func TestTroubled(t *testing.T) {
	waypoint := func(state api.WaypointState, down time.Duration, kinds ...api.WaypointKind) *api.Using {
		return &api.Using{Waypoints: []api.Waypoint{{Name: "bob", Addr: bob, State: state, Since: noon.Add(-down), Kinds: kinds}}}
	}
	for name, test := range map[string]struct {
		client *api.Using
		want   string
	}{
		"all is well":                  {waypoint(api.WaypointUp, 0, api.WaypointKind{Kind: "mapped", State: api.KindReady}), ""},
		"the session is down":          {waypoint(api.WaypointDown, time.Minute, api.WaypointKind{Kind: "in-band", State: api.KindDown}), "udp 198.51.100.9:45672"},
		"the session just began":       {waypoint(api.WaypointDown, time.Second), ""},
		"in-band rests":                {waypoint(api.WaypointUp, 0, api.WaypointKind{Kind: "in-band", State: api.KindResting}), "in-band 198.51.100.9:443"},
		"mapped rests":                 {waypoint(api.WaypointUp, 0, api.WaypointKind{Kind: "mapped", State: api.KindResting}), "mptcp 198.51.100.9:443"},
		"mapped rests for some server": {waypoint(api.WaypointUp, 0, api.WaypointKind{Kind: "mapped", State: api.KindReady, Why: "rests towards 192.0.2.7:80"}), "mptcp 198.51.100.9:443"},
		"WireGuard rests":              {waypoint(api.WaypointUp, 0, api.WaypointKind{Kind: "wireguard", State: api.KindResting, Remote: bob}), "udp 198.51.100.9:45672"},
		"WireGuard does not come up":   {waypoint(api.WaypointUp, time.Minute, api.WaypointKind{Kind: "wireguard", State: api.KindDown, Remote: bob}), "udp 198.51.100.9:45672"},
		"OpenVPN does not come up":     {waypoint(api.WaypointUp, time.Minute, api.WaypointKind{Kind: "openvpn", State: api.KindDown, Remote: vpn}), "udp 198.51.100.9:1194"},
		"OpenVPN rests":                {waypoint(api.WaypointUp, 0, api.WaypointKind{Kind: "openvpn", State: api.KindResting, Remote: vpn}), "udp 198.51.100.9:1194"},
		"OpenVPN is connecting":        {waypoint(api.WaypointUp, time.Second, api.WaypointKind{Kind: "openvpn", State: api.KindDown, Remote: vpn}), ""},
		"OpenVPN is refused":           {waypoint(api.WaypointUp, time.Minute, api.WaypointKind{Kind: "openvpn", State: api.KindDown, Why: "/dev/net/tun is missing"}), ""},
		"OpenVPN is not offered":       {waypoint(api.WaypointUp, 0, api.WaypointKind{Kind: "openvpn", State: api.KindNotOffered}), ""},
	} {
		got := ""
		for _, p := range troubled(test.client, noon) {
			got += p.Recipe + " " + p.To.String()
		}
		if got != test.want {
			t.Errorf("%s: probed are %q, want %q", name, got, test.want)
		}
	}
}

// The sessions' port and OpenVPN's are two paths, since a firewall may tell them apart.
func TestPortsOfDatagrams(t *testing.T) {
	client := &api.Using{Waypoints: []api.Waypoint{{Name: "bob", Addr: bob, State: api.WaypointUp, Since: noon.Add(-time.Minute), Kinds: []api.WaypointKind{
		{Kind: "wireguard", State: api.KindDown, Remote: bob}, {Kind: "openvpn", State: api.KindDown, Remote: vpn},
	}}}}
	var known []api.ProbedPath
	for _, want := range []netip.AddrPort{bob, vpn} {
		next, ok := due(client, known, noon)
		if !ok || next.To != want || next.Recipe != "udp" {
			t.Errorf("%v is probed by %s (%v), want %v", next.To, next.Recipe, ok, want)
		}
		next.At = noon
		known = append(known, next)
	}
	if next, ok := due(client, known, noon); ok {
		t.Errorf("%v is probed again", next.To)
	}
}

func TestMostADay(t *testing.T) {
	var known []api.ProbedPath
	for i := range mostADay {
		known = append(known, api.ProbedPath{At: noon, To: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80), Recipe: "mptcp"})
	}
	if next, ok := due(trouble(), known, noon.Add(time.Hour)); ok {
		t.Errorf("%v is to be probed", next.To)
	}
	if _, ok := due(trouble(), known, noon.Add(25*time.Hour)); !ok {
		t.Error("nothing is to be probed a day later")
	}
}

// A file that is damaged is forgotten.
func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(File(dir), []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var probed []string
	k := keeper(t, dir, &probed)
	k.look(t.Context(), noon)
	if len(probed) != 1 || len(k.Known(server.Addr())) != 1 {
		t.Errorf("probed %q", probed)
	}
}
