package client

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// A detour was tried if a connection to the very server has, or had, a subflow over it that came up.
func TestTried(t *testing.T) {
	server, other := netip.MustParseAddrPort("203.0.113.5:22"), netip.MustParseAddrPort("203.0.113.5:443")
	conn := func(to netip.AddrPort, kind, state string) path.ConnState {
		return path.ConnState{Remote: to, Subflows: []path.SubflowState{{Kind: "direct", State: "up"}, {Kind: kind, Waypoint: "bob", State: state}}}
	}
	for name, test := range map[string]struct {
		living, closed []path.ConnState
		want           bool
	}{
		"no connection":  {nil, nil, false},
		"living":         {[]path.ConnState{conn(server, "in-band", "up")}, nil, true},
		"closed":         {nil, []path.ConnState{conn(server, "in-band", "backup")}, true},
		"left":           {[]path.ConnState{{Remote: server, Left: []path.Departure{{Kind: "in-band", Waypoint: "bob"}}}}, nil, true},
		"another left":   {[]path.ConnState{{Remote: server, Left: []path.Departure{{Kind: "in-band", Waypoint: "carol"}}}}, nil, false},
		"another port":   {[]path.ConnState{conn(other, "in-band", "up")}, nil, false},
		"another kind":   {[]path.ConnState{conn(server, "mapped", "up")}, nil, false},
		"not up as yet":  {[]path.ConnState{conn(server, "in-band", "joining")}, nil, false},
		"one of several": {[]path.ConnState{conn(other, "in-band", "up"), conn(server, "in-band", "up")}, nil, true},
	} {
		x := path.Explanation{Server: server, Conns: test.living}
		for _, c := range test.closed {
			x.Closed = append(x.Closed, path.ClosedConn{ConnState: c})
		}
		if got := tried(&x, &path.Candidate{Detour: path.Detour{Waypoint: "bob", Kind: path.InBand}}); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The way from a waypoint to the server is assumed to be as long as the direct path. If that is not known, the estimate has
// only the way to the waypoint.
func TestAtLeast(t *testing.T) {
	for _, test := range []struct {
		direct, wait time.Duration
		measured     bool
		want         bool
	}{{wait: 2, want: true}, {direct: 1, wait: 2}, {wait: 2, measured: true}, {}} {
		x := path.Explanation{Direct: path.Outlook{Known: path.Known{MinRTT: test.direct}}}
		if got := atLeast(&x, &path.Candidate{Outlook: path.Outlook{Wait: test.wait, Measured: test.measured}}); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// Programs get the numbers of each reason, for living subflows and for paths that were left.
func TestReasonsForPrograms(t *testing.T) {
	left := path.SubflowReason{
		Cause: path.CauseGivesLess, Other: &policy.Comparison{Waypoint: "carol", Wait: 1e6, OtherWait: 2e6, Goodput: 3, OtherGoodput: 4, Loss: 0.5, OtherLoss: 0.6},
		Numbers: &path.Numbers{
			Loss: 0.7, Goodput: 8, Before: 9, With: 10, Without: 11, Missed: 12, Held: 13, Carried: 14, Silent: 15 * time.Millisecond, Unanswered: 16, Limit: 17,
		},
	}
	conn := describeConn(path.ConnState{
		Left: []path.Departure{{Kind: "in-band", Waypoint: "bob", At: time.Unix(1, 0), Ended: true, Reason: left}},
		Subflows: []path.SubflowState{
			{Kind: "direct"}, {Kind: "in-band", Waypoint: "dave", Reason: path.SubflowReason{Cause: path.CauseStandby}},
			{Kind: "in-band", Waypoint: "eve", Reason: path.SubflowReason{Cause: path.CauseBudget, Budget: budget.Metered}},
		},
	})
	want := []api.Left{{
		Kind: "in-band", Waypoint: "bob", At: time.Unix(1, 0), Ended: true, Why: "bulk traffic got 0.0 Mbit/s over it, and could expect 0.0 Mbit/s of carol",
		Reason: api.Reason{
			Code: "less-goodput", Loss: 0.7, Goodput: 8, Before: 9, With: 10, Without: 11, Limit: 17, Missed: 12, Held: 13, Carried: 14, Silent: 15, Unanswered: 16,
			Compared: []api.Compared{{With: "carol", Goodput: 3, OtherGoodput: 4, Wait: 1, OtherWait: 2, Loss: 0.5, OtherLoss: 0.6}},
		},
	}}
	if d := cmp.Diff(want, conn.Left); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if direct, dave := conn.Subflows[0].Reason, conn.Subflows[1].Reason; direct != nil || dave == nil || dave.Code != "standby" || dave.Budget != "" {
		t.Errorf("direct: %+v, dave: %+v", direct, dave)
	}
	if eve := conn.Subflows[2].Reason; eve.Code != "budget" || eve.Budget != "metered" {
		t.Errorf("eve: %+v", eve)
	}
}

// A detour is told from that through another address of the same waypoint. A path over an uplink has no waypoint.
func TestEndOfDetour(t *testing.T) {
	at := netip.MustParseAddr
	for _, test := range []struct {
		detour path.Detour
		want   netip.Addr
	}{
		{path.Detour{Waypoint: "bob", Kind: path.InBand, Remote: netip.AddrPortFrom(at("192.0.2.7"), 0)}, at("192.0.2.7")},
		{path.Detour{Waypoint: "bob", Kind: path.WireGuard, Local: at("10.1.2.3"), Endpoint: at("192.0.2.8")}, at("192.0.2.8")},
		{path.Detour{Local: at("10.1.2.3")}, netip.Addr{}},
	} {
		if got := endOf(&test.detour); got != test.want {
			t.Errorf("%+v: %v", test.detour, got)
		}
	}
}

// Of a waypoint through which nothing leads to a server, its own reason for this server counts, then its state, then that of the kinds.
func TestUnavailableWhy(t *testing.T) {
	now, server := time.Unix(1_000_000, 0), netip.MustParseAddrPort("203.0.113.5:22")
	bob := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}
	c := &Client{book: detour.New(nil)}
	c.book.Up(bob)
	limited := api.WaypointKind{Kind: "in-band", State: api.KindDown, Why: "refused"}
	mapped := api.WaypointKind{Kind: "mapped", State: api.KindReady}
	const asked = "a mapped detour is requested when a connection begins"
	check := func(what string, w api.Waypoint, to netip.AddrPort, want string) {
		t.Helper()
		if got := c.unavailableWhy(bob, &w, to, now); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("up", api.Waypoint{State: api.WaypointUp, Kinds: []api.WaypointKind{limited, mapped}}, server, "in-band is down: refused; "+asked)
	check("the server has IPv6", api.Waypoint{State: api.WaypointUp, Kinds: []api.WaypointKind{mapped}}, netip.MustParseAddrPort("[2001:db8::5]:22"), "")
	check("closed", api.Waypoint{State: api.WaypointClosed, Why: "switched off", Kinds: []api.WaypointKind{{Kind: "mapped", State: api.KindClosed}}}, server, "switched off")
	check("moving", api.Waypoint{State: api.WaypointMoving}, server, "moving")
	c.steering = newSteering(config.Client{Avoid: []string{"bob"}})
	check("avoided", api.Waypoint{State: api.WaypointUp, Kinds: []api.WaypointKind{mapped}}, server, "you do not want this waypoint (dcol use, dcol avoid)")
	c.steering = newSteering(config.Client{})
	c.book.Refused(c.book.Request(server, now)[0], detour.Refusal{Why: "port denied", Forbidden: true}, now)
	check("denied", api.Waypoint{State: api.WaypointUp, Kinds: []api.WaypointKind{mapped}}, server, "port denied")
	check("another server", api.Waypoint{State: api.WaypointUp, Kinds: []api.WaypointKind{mapped}}, netip.MustParseAddrPort("203.0.113.6:22"), asked)
}
