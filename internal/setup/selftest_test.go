package setup

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

func TestFindings(t *testing.T) {
	up := api.Collective{Name: "friends", Members: 2, Coordinator: api.CoordinatorLink{Connected: true, Server: "hub"}}
	bob := func(state api.WaypointState, kinds ...api.WaypointKind) *api.Using {
		return &api.Using{Waypoints: []api.Waypoint{{Name: "bob", Addr: netip.MustParseAddrPort("192.0.2.7:45672"), State: state, Why: "no answer", Kinds: kinds}}}
	}
	record := func(checked *api.Reach) *api.Collective {
		c := up
		c.Record = api.OwnRecord{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.8")}, Port: 45672, Checked: checked}
		return &c
	}
	punch := func(c *api.Collective) *api.Collective {
		c.Record.Punch = true
		return c
	}
	waypoints := api.Members{Self: "alice", Members: []api.Member{{Name: "alice", Roles: []string{"waypoint"}}, {Name: "bob", Roles: []string{"waypoint"}}}}
	for name, test := range map[string]struct {
		status    api.Status
		members   api.Members
		want      string
		unsettled bool
	}{
		"not connected": {api.Status{Collective: &api.Collective{Coordinator: api.CoordinatorLink{Why: "no route"}}}, api.Members{},
			"soon member: not connected to a coordinator: no route. Allow TCP ports 45672 and 45673: incoming at the coordinator, outgoing here. The agent keeps trying", true},
		"a coordinator that is not connected to itself": {api.Status{Collective: &api.Collective{Coordinator: api.CoordinatorLink{Why: "refused"}}, Coordinator: &api.Coordinator{}}, api.Members{},
			"soon member: not connected to this coordinator's own bus: refused. The agent keeps trying; see its log; soon coordinator: hosts cannot join yet", true},
		"no waypoints without a coordinator": {api.Status{Collective: &api.Collective{}, Client: &api.Using{}}, api.Members{},
			"soon member: connecting to the coordinator; soon client: no waypoint is known, because no coordinator is connected", true},
		"no directory yet": {api.Status{Collective: &api.Collective{Members: 1, Coordinator: api.CoordinatorLink{Connected: true}}}, api.Members{},
			"soon member: connecting to the coordinator", true},
		"expelled": {api.Status{Collective: &api.Collective{Certificate: api.Certificate{Expelled: "bob was expelled on 1 March: sent spam"}}, Client: &api.Using{}, Problems: []string{"the same"}}, api.Members{},
			"FAIL member: bob was expelled on 1 March: sent spam. Connections use the direct path only. Ask the collective's operator. " +
				"To leave the collective, run `dcol leave`", false},
		"the first": {api.Status{Collective: &api.Collective{Members: 1, Coordinator: up.Coordinator, Record: record(nil).Record}, Client: &api.Using{}, Serving: &api.Serving{},
			Coordinator: &api.Coordinator{Members: 1, Listen: "[::]:45672", Bus: "localhost:45673"}}, api.Members{},
			"ok member: connected to the coordinator hub, 1 member known; ok coordinator: hosts join and renew at TCP port 45672, and exchange messages at TCP port 45673; " +
				"later client: no other waypoint has joined yet; detours begin with the first; later waypoint: nobody has tested yet whether others can reach UDP port 45672 of 192.0.2.8", false},
		"no waypoint in the directory": {api.Status{Collective: &up, Client: &api.Using{}}, api.Members{Self: "bob", Members: waypoints.Members[1:]},
			"ok member: connected to the coordinator hub, 2 members known; later client: no other waypoint has joined yet; detours begin with the first", false},
		"not chosen yet": {api.Status{Collective: &up, Client: &api.Using{}}, waypoints,
			"ok member: connected to the coordinator hub, 2 members known; soon client: no other waypoint has joined yet; detours begin with the first", true},
		"no session": {api.Status{Client: bob("down")}, waypoints, "soon client: no detour is ready yet: bob at 192.0.2.7: no answer", true},
		"all kinds":  {api.Status{Client: bob("up", api.WaypointKind{Kind: "in-band", State: "ready"}, api.WaypointKind{Kind: "mapped", State: "ready"})}, waypoints, "ok client: in-band and mapped detours through bob are ready", false},
		"one to come": {api.Status{Client: bob("up", api.WaypointKind{Kind: "in-band", State: "down"}, api.WaypointKind{Kind: "mapped", State: "ready"})}, waypoints,
			"ok client: mapped detours through bob are ready", true},
		"a tunnel to one of two addresses": {api.Status{Client: &api.Using{Waypoints: []api.Waypoint{
			{Name: "bob", Addr: netip.MustParseAddrPort("192.0.2.7:45672"), State: "up", Kinds: []api.WaypointKind{{Kind: "wireguard", State: "ready"}}},
			{Name: "bob", Addr: netip.MustParseAddrPort("[2001:db8::7]:45672"), State: "up", Kinds: []api.WaypointKind{{Kind: "wireguard", State: "down"}}},
		}}}, waypoints, "ok client: wireguard detours through bob are ready", false},
		"reached": {api.Status{Collective: record(&api.Reach{Yes: 1, Of: 2, By: []string{"hub"}}), Serving: &api.Serving{}}, waypoints,
			"ok member: connected to the coordinator hub, 2 members known; ok waypoint: others reach UDP port 45672 of 192.0.2.8 (checked by hub)", false},
		"not reached": {api.Status{Collective: record(&api.Reach{Of: 1, By: []string{"hub"}, Why: "no answer"}), Serving: &api.Serving{}}, waypoints,
			"ok member: connected to the coordinator hub, 2 members known; no waypoint: hub cannot reach UDP port 45672 of 192.0.2.8 (no answer). " +
				"Allow that port, in the router too if there is one, or set this host's public address ([collective] addresses). The client role works without that", true},
		"behind a router": {api.Status{Collective: record(&api.Reach{Of: 1, By: []string{"hub"}, Why: "no answer"}),
			Serving: &api.Serving{Outside: &api.Outside{Problem: "the router refuses", Fix: "switch on UPnP"}}}, waypoints,
			"ok member: connected to the coordinator hub, 2 members known; no waypoint: hub cannot reach UDP port 45672 of 192.0.2.8 (no answer). the router refuses: switch on UPnP", true},
		"punchable, not said yet": {api.Status{Collective: record(&api.Reach{Of: 1, By: []string{"hub"}}), Serving: &api.Serving{Outside: &api.Outside{Leaves: "punchable"}}}, waypoints,
			"ok member: connected to the coordinator hub, 2 members known; soon waypoint: hub cannot reach UDP port 45672 of 192.0.2.8, because this host is behind a NAT; " +
				"others will try hole punching", true},
		"punched": {api.Status{Collective: punch(record(&api.Reach{Yes: 1, Of: 1, By: []string{"hub"}})), Serving: &api.Serving{Outside: &api.Outside{Leaves: "punchable"}}}, waypoints,
			"ok member: connected to the coordinator hub, 2 members known; ok waypoint: others reach UDP port 45672 of 192.0.2.8 by hole punching, because this host is behind a NAT (checked by hub)", false},
		"punched in vain": {api.Status{Collective: punch(record(&api.Reach{Of: 1, By: []string{"hub"}, Why: "nothing came through"})),
			Serving: &api.Serving{Outside: &api.Outside{Leaves: "punchable", Problem: "the router refuses", Fix: "switch on UPnP"}}}, waypoints,
			"ok member: connected to the coordinator hub, 2 members known; no waypoint: hub cannot reach UDP port 45672 of 192.0.2.8 by hole punching (nothing came through). " +
				"the router refuses: switch on UPnP", true},
		"no in-band detours here": {api.Status{Client: bob("up", api.WaypointKind{Kind: "in-band", State: "unusable"}, api.WaypointKind{Kind: "mapped", State: "ready"}),
			Serving: &api.Serving{Offers: []string{"mapped"}}, Problems: []string{"in-band " + api.NotUsed + ": no cgroup: mount one", "in-band " + api.NotOffered + ": no eBPF: use another kernel"}}, waypoints,
			"ok client: mapped detours through bob are ready; warn client: in-band detours are not used: no cgroup: mount one. Other kinds of detours do not need this; " +
				"warn waypoint: in-band detours are not offered: no eBPF: use another kernel. It offers mapped", false},
		"nothing to offer": {api.Status{Serving: &api.Serving{}, Problems: []string{"wireguard " + api.NotOffered + ": no TUN"}}, waypoints,
			"FAIL wireguard detours are not offered: no TUN", true},
		"problems": {api.Status{Problems: []string{"the disk is full", api.Unreached + " at all"}}, api.Members{}, "FAIL the disk is full", true},
	} {
		var got []string
		unsettled := false
		for _, f := range findings(test.status, test.members) {
			got = append(got, string(f.State)+" "+f.Text)
			unsettled = unsettled || f.unsettled()
		}
		if said := strings.Join(got, "; "); said != test.want || unsettled != test.unsettled {
			t.Errorf("%s:\n%s\nunsettled: %v, want\n%s", name, said, unsettled, test.want)
		}
	}
}

// Without a coordinator, the host is not a working member. Without another waypoint, it is.
func TestTimeIsOver(t *testing.T) {
	unconnected := api.Status{Collective: &api.Collective{Coordinator: api.CoordinatorLink{Why: "no answer"}}, Client: &api.Using{}}
	late := timeIsOver(findings(unconnected, api.Members{}))
	if len(late) != 2 || late[0].State != Fails || late[1].State != Later || !Failed(late) {
		t.Errorf("without a coordinator: %+v", late)
	}
	unmade := api.Status{Collective: &api.Collective{Members: 1, Coordinator: api.CoordinatorLink{Connected: true}}, Coordinator: &api.Coordinator{}}
	if late = timeIsOver(findings(unmade, api.Members{})); !Failed(late) {
		t.Errorf("a coordinator that nobody can join by: %+v", late)
	}
	waiting := api.Status{
		Collective: &api.Collective{Members: 2, Coordinator: api.CoordinatorLink{Connected: true}},
		Client:     &api.Using{Waypoints: []api.Waypoint{{Name: "bob", State: "down", Why: "no answer"}}},
	}
	if late = timeIsOver(findings(waiting, api.Members{})); Failed(late) || late[1].State != Later {
		t.Errorf("a waypoint that is away: %+v", late)
	}
}
