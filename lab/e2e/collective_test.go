package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// Members that joined know each other only from their coordinator. The coordinator may be away. An expelled
// member is not used any more. A download continues through all that.
func TestCollective(t *testing.T) {
	w := newWorld(t)
	w.coordinate(server)
	w.serve()
	w.start(server)
	for _, host := range []string{bob, mallory} {
		w.join(host, "waypoint", "[waypoint]\n"+labAllowed+"port_mapping = false\n")
		w.start(host)
	}
	w.join(alice, "client", "[client]\nexclude = []\nkinds = [\"mapped\"]\n")
	w.start(alice)
	w.waypointsAre("up", bob, mallory)
	w.knowsAll(alice, bob, mallory, server)

	x := w.curl(w.url())
	w.detoured()
	x.goesOn()

	// The coordinator is away, also when a member starts.
	w.restartWithout(server, alice)
	w.waypointsAre("up", bob, mallory)
	if c := w.mustStatus(alice).Collective; c.Coordinator.Connected || c.Coordinator.Why == "" {
		t.Errorf("alice says of the coordinator, which is away: %+v", c.Coordinator)
	}
	x.goesOn()
	w.start(server)
	w.eventually("alice is connected again", func() error {
		c := w.mustStatus(alice).Collective
		return holds(c.Coordinator.Connected && !c.Behind, "%+v", c)
	})

	// Who carries the download is expelled.
	gone := detour(w.detoured()).Waypoint
	kept := map[string]string{bob: mallory, mallory: bob}[gone]
	began := time.Now()
	w.dcol(server, "expel", gone, "--why", "sent spam")
	w.waypointsAre("up", kept)
	if took := time.Since(began); took > 5*time.Second && slowness() == 1 {
		t.Errorf("alice used %s for another %v", gone, took)
	}
	w.eventually(kept+" carries it", func() error {
		c, err := w.only()
		if err != nil {
			return err
		}
		return holds(len(c.Subflows) == 2 && detour(c).Waypoint == kept, "subflows %+v", c.Subflows)
	})
	x.goesOn()
	w.eventually(gone+" says that it was expelled, and runs", func() error {
		s := w.mustStatus(gone)
		return holds(strings.Contains(strings.Join(s.Problems, "\n"), "sent spam"), "%+v", s.Problems)
	})
	x.endsWell()
}

// A waypoint announces an address that is not its own. The coordinator passes it to nobody, and the waypoint
// reports it.
func TestWaypointNotWhereItSays(t *testing.T) {
	w := newWorld(t)
	w.coordinate(server)
	w.serve()
	w.start(server)
	const serves = "[waypoint]\n" + labAllowed + "port_mapping = false\n"
	w.join(mallory, "waypoint", serves)
	w.configureMember(mallory, "waypoint", "addresses = [\"10.0.4.77\"]\n"+serves)
	w.start(mallory)
	w.within(patience, "mallory says that others are not told", func() error {
		s := w.mustStatus(mallory)
		return holds(strings.Contains(strings.Join(s.Problems, "\n"), "the addresses [10.0.4.77] are not published"), "%+v", s.Problems)
	})
	w.join(alice, "client", "")
	w.configureMember(alice, "client", "waypoints = 1\n[client]\nexclude = []\nkinds = [\"mapped\"]\n")
	w.start(alice)
	w.join(bob, "waypoint", serves)
	w.start(bob)
	w.waypointsAre("up", bob)
}

// A waypoint cannot be reached. Other members find out, the waypoint is notified, and its client uses another
// one.
func TestWaypointNotReached(t *testing.T) {
	w := newWorld(t)
	w.coordinate(server)
	w.serve()
	w.start(server)
	const serves = "[waypoint]\n" + labAllowed + "port_mapping = false\n"
	w.join(mallory, "waypoint", serves)
	w.run(mallory, "nft", "add table inet wall; add chain inet wall in { type filter hook input priority 0; }; add rule inet wall in udp dport 45672 drop")
	w.start(mallory)
	w.join(alice, "client", "")
	w.configureMember(alice, "client", "waypoints = 1\n[client]\nexclude = []\nkinds = [\"mapped\"]\n")
	w.start(alice)
	w.waypointsAre("down", mallory)
	w.join(bob, "waypoint", serves)
	w.start(bob)
	// Members try it twice, the second time after some pause, or alice gives it a minute.
	w.within(4*patience, "alice uses bob", func() error { return w.uses("up", bob) })
	w.within(4*patience, "mallory says that others do not reach it", func() error {
		s := w.mustStatus(mallory)
		return holds(strings.Contains(strings.Join(s.Problems, "\n"), "cannot reach this waypoint"), "%+v", s.Problems)
	})
}

// Tunnels to waypoints that were chosen come and go with them, and what ran through one that goes moves.
func TestChosenTunnels(t *testing.T) {
	w := newWorld(t)
	w.coordinate(server)
	w.serve()
	w.start(server)
	for _, host := range []string{bob, mallory} {
		w.join(host, "waypoint", "[waypoint]\n"+labAllowed+"offers = [\"wireguard\"]\nport_mapping = false\n")
		w.start(host)
	}
	w.join(alice, "client", "[client]\nexclude = []\nkinds = [\"wireguard\"]\n")
	w.start(alice)
	w.waypointsAre("up", bob, mallory)
	tunnels := func(n int) {
		w.Helper()
		w.eventually(fmt.Sprintf("alice has %d tunnels", n), func() error {
			links := w.run(alice, "ip", "-brief", "link", "show", "up")
			return holds(strings.Count(links, "dcolwg") == n, "links\n%s", links)
		})
	}
	tunnels(2)
	x := w.curl(w.url())
	gone := detour(w.subflows("direct up", "wireguard up")).Waypoint
	kept := map[string]string{bob: mallory, mallory: bob}[gone]
	x.goesOn()
	w.dcol(server, "expel", gone, "--why", "sent spam")
	w.waypointsAre("up", kept)
	tunnels(1)
	w.eventually(kept+" carries it", func() error {
		c, err := w.only()
		if err != nil {
			return err
		}
		return holds(len(c.Subflows) == 2 && detour(c).Waypoint == kept, "subflows %+v", c.Subflows)
	})
	x.goesOn()
	x.endsWell()
}

// coordinate makes a host the coordinator and first member of a new collective.
func (w *world) coordinate(host string) {
	w.Helper()
	w.dcol(host, "init", "friends", "--address", w.addr4(host).String(), "--no-start")
	w.configureMember(host, "coordinator", fmt.Sprintf("[coordinator]\naddresses = [\"%v\"]\n", w.addr4(host)))
}

// hub returns the coordinator, as members' configurations name it.
func (w *world) hub() string { return fmt.Sprintf("%s@%v:45672", server, w.addr4(server)) }

// join makes a host a member with an invitation of the coordinator, with a configuration of ours.
func (w *world) join(host, role, more string) {
	w.Helper()
	line := strings.TrimSpace(w.dcol(server, "invite", "--name", host))
	w.dcol(host, "join", line, "--no-start")
	w.configureMember(host, role, more)
}

// configureMember writes the configuration of a member with a role, or several: "client+waypoint".
func (w *world) configureMember(host, role, more string) {
	w.Helper()
	w.configure(host, fmt.Sprintf(`name = %q
roles = ["%s"]
log_level = "debug"
[identity]
certificate = "/var/lib/dcol/identity/member.crt"
key         = "/var/lib/dcol/identity/member.key"
ca          = "/var/lib/dcol/identity/ca.crt"
crl         = "/var/lib/dcol/identity/ca.crl"
[collective]
coordinators = [%q]
`, host, strings.ReplaceAll(role, "+", `", "`), w.hub())+more)
}

// waypointsAre waits until these are the waypoints that alice uses, all in this state.
func (w *world) waypointsAre(state api.WaypointState, names ...string) {
	w.Helper()
	w.eventually(fmt.Sprintf("alice's waypoints are %v, %s", names, state), func() error { return w.uses(state, names...) })
}

func (w *world) uses(state api.WaypointState, names ...string) error {
	w.Helper()
	var have []string
	for _, p := range w.mustStatus(alice).Client.Waypoints {
		if p.Addr.Addr().Is4() {
			have = append(have, p.Name)
		}
		if p.State != state {
			return fmt.Errorf("%s is %s: %s", p.Name, p.State, p.Why)
		}
	}
	slices.Sort(have)
	slices.Sort(names)
	return holds(slices.Equal(have, names), "they are %v", have)
}

// knowsAll waits until a host has these in its directory.
func (w *world) knowsAll(host string, others ...string) {
	w.Helper()
	w.eventually(host+" knows all members", func() error {
		var have []string
		var list api.Members
		if err := json.Unmarshal([]byte(w.dcol(host, "members", "--json")), &list); err != nil {
			return err
		}
		for _, m := range list.Members {
			have = append(have, m.Name)
		}
		for _, name := range append(others, host) {
			if !slices.Contains(have, name) {
				return fmt.Errorf("%s is not among %v", name, have)
			}
		}
		return nil
	})
}

// restartWithout stops the agent of one host, and restarts that of another.
func (w *world) restartWithout(away, host string) {
	w.Helper()
	for _, a := range slices.Backward(w.agents) {
		if a.host == away {
			a.stop()
			break
		}
	}
	w.restart(host)
}
