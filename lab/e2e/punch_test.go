package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/testbed"
)

// gated puts a home router of a kind between a host and the one that all hang on.
func gated(s *testbed.Spec, host string, kind testbed.NATKind) {
	gate := "gate-" + host
	s.Hosts = append(s.Hosts, testbed.HostSpec{Name: gate, Forward: true, NAT: testbed.NAT{Inside: []string{host}, Kind: kind}})
	for i := range s.Links {
		if s.Links[i].Name == host {
			s.Links[i].B = gate
		}
	}
	s.Links = append(s.Links, testbed.LinkSpec{Name: gate, A: gate, B: router})
}

// A waypoint behind a NAT that no router opens is found by members of its collective all the same, where
// that is possible: the session by knocking at the same time, the tunnel because the waypoint sends to where
// it will come from.
func TestWaypointBehindNATs(t *testing.T) {
	t.Parallel()
	none := testbed.NATKind("none")
	for _, c := range []struct {
		alice, bob testbed.NATKind
		leaves     []api.Reachability
	}{
		// That strangers get in, only a stranger can tell, and in so small a collective there may be none left.
		{none, testbed.FullCone, []api.Reachability{"reachable", "punchable"}},
		{none, testbed.PortRestricted, []api.Reachability{"punchable"}},
		{testbed.PortRestricted, testbed.PortRestricted, []api.Reachability{"punchable"}},
		{testbed.Symmetric, testbed.AddressRestricted, []api.Reachability{"punchable"}},
	} {
		t.Run(fmt.Sprintf("%s and %s", c.alice, c.bob), func(t *testing.T) {
			w := newWorldWith(t, func(s *testbed.Spec) {
				gated(s, bob, c.bob)
				if c.alice != none {
					gated(s, alice, c.alice)
				}
			})
			w.coordinate(server)
			// This waypoint only answers questions about addresses. Alice does not use its detours.
			other := "[waypoint]\n" + labAllowed + "port_mapping = false\noffers = [\"mapped\"]\n"
			w.configureMember(server, "coordinator+waypoint", fmt.Sprintf("[coordinator]\naddresses = [\"%v\"]\n", w.addr4(server))+other)
			w.serve()
			w.start(server)
			w.join(mallory, "waypoint", other)
			w.start(mallory)
			w.join(bob, "waypoint", "[waypoint]\n"+labAllowed+"port_mapping = false\noffers = [\"wireguard\"]\n")
			w.start(bob)
			w.outsideIs(fmt.Sprint(c.leaves), func(o api.Outside) bool { return slices.Contains(c.leaves, o.Leaves) && o.Answered == 2 })
			// Who tries for the coordinator punches as clients do.
			w.eventually("bob is found to be reached, by hole punching", func() error {
				r := w.mustStatus(bob).Collective.Record
				return holds(r.Punch == (w.mustStatus(bob).Serving.Outside.Leaves == "punchable") && r.Checked != nil && r.Checked.Yes > 0 && r.Checked.Yes == r.Checked.Of,
					"punch %v, checked %+v", r.Punch, r.Checked)
			})
			w.join(alice, "client", "[client]\nexclude = []\nkinds = [\"wireguard\"]\n")
			w.start(alice)
			at, _ := w.host("gate-" + bob).AddrOn("gate-" + bob)
			w.eventually("alice has a session with bob through the gate", func() error {
				all := w.mustStatus(alice).Client.Waypoints
				up := slices.ContainsFunc(all, func(p api.Waypoint) bool { return p.Name == bob && p.State == "up" && p.Addr.Addr() == at })
				return holds(up, "waypoints %+v", all)
			})
			x := w.curl(w.url())
			w.subflows("direct up", "wireguard up")
			if c.alice == none {
				w.cut()
			} else {
				outside, _ := w.host("gate-" + alice).AddrOn("gate-" + alice)
				w.cutFrom(outside.String())
			}
			x.goesOn()
			w.mend()
			x.endsWell()
		})
	}
}
