package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/membership"
)

// Members that joined know each other by their coordinator, and by nothing in their files. The coordinator
// may be away; who is expelled is used no more; and a download goes on through all that.
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
	w.ask(server, "expel", api.ExpelRequest{Member: gone, Why: "sent spam"}, nil)
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

// A waypoint that says it can be reached where it cannot: other members find out, it is told, and a client
// that has chosen it uses another.
func TestWaypointNotWhereItSays(t *testing.T) {
	w := newWorld(t)
	w.coordinate(server)
	w.serve()
	w.start(server)
	const serves = "[waypoint]\n" + labAllowed + "port_mapping = false\n"
	w.join(mallory, "waypoint", serves)
	w.configureMember(mallory, "waypoint", w.hub(), "addresses = [\"10.0.4.77\"]\n"+serves)
	w.start(mallory)
	w.join(alice, "client", "")
	w.configureMember(alice, "client", w.hub(), "waypoints = 1\n[client]\nexclude = []\nkinds = [\"mapped\"]\n")
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
	w.ask(server, "expel", api.ExpelRequest{Member: gone, Why: "sent spam"}, nil)
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

// coordinate makes a host the coordinator of a new collective, and its first member.
func (w *world) coordinate(host string) {
	w.Helper()
	err := w.host(host).Do(func() error {
		request, err := newKey(host)
		if err != nil {
			return err
		}
		f, err := coordinator.Init("/var/lib/dcol/coordinator", coordinator.Founding{Collective: "friends", Request: request})
		if err != nil {
			return err
		}
		return writeIdentity(f.Chain, f.Roots, f.Lists)
	})
	if err != nil {
		w.Fatal(err)
	}
	w.configureMember(host, "coordinator", w.hub(), fmt.Sprintf("[coordinator]\naddresses = [\"%v\"]\n", w.addr4(host)))
}

// hub is the coordinator, as members' configurations name it.
func (w *world) hub() string { return fmt.Sprintf("%s@%v:45672", server, w.addr4(server)) }

// join makes a host a member with an invitation of the coordinator.
func (w *world) join(host, role, more string) {
	w.Helper()
	var invitation api.Invitation
	w.ask(server, "invite", api.InviteRequest{Name: host, LifetimeSeconds: 3600}, &invitation)
	if out, err := w.host(host).Command(w.Context(), os.Args[0], joinCommand, host, invitation.Line).CombinedOutput(); err != nil {
		w.Fatalf("%s does not join: %v\n%s", host, err, out)
	}
	w.configureMember(host, role, w.hub(), more)
}

// configureMember writes the configuration of a member with a role, or several: "client+waypoint".
func (w *world) configureMember(host, role, hub, more string) {
	w.Helper()
	w.configure(host, fmt.Sprintf(`name = %q
roles = ["%s"]
log_level = "debug"
[identity]
certificate = "/var/lib/dcol/me.crt"
key         = "/var/lib/dcol/me.key"
ca          = "/var/lib/dcol/ca.crt"
crl         = "/var/lib/dcol/ca.crl"
[collective]
coordinators = [%q]
`, host, strings.ReplaceAll(role, "+", `", "`), hub)+more)
}

// ask asks a host's agent by its local API.
func (w *world) ask(host, what string, request, answer any) {
	w.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		w.Fatal(err)
	}
	out := w.run(host, "curl", "-sS", "--fail-with-body", "--unix-socket", "/run/dcol/agent.sock", "-d", string(body), "http://agent/v1/"+what)
	if answer == nil {
		return
	}
	if err := json.Unmarshal([]byte(out), answer); err != nil {
		w.Fatalf("%s: %v\n%s", what, err, out)
	}
}

// waypointsAre waits until these are the waypoints that alice uses, all in this state.
func (w *world) waypointsAre(state string, names ...string) {
	w.Helper()
	w.eventually(fmt.Sprintf("alice's waypoints are %v, %s", names, state), func() error { return w.uses(state, names...) })
}

func (w *world) uses(state string, names ...string) error {
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
		var list api.Members
		out := w.run(host, "curl", "-sS", "--unix-socket", "/run/dcol/agent.sock", "http://agent/v1/members")
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		var have []string
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

// joinCommand has this executable join a collective on the host that it runs on: joinCommand NAME LINE.
const joinCommand = "join-for-test"

func joinHere(name, text string) error {
	line, err := enrol.ParseLine(text)
	if err != nil {
		return err
	}
	request, err := newKey(name)
	if err != nil {
		return err
	}
	welcome, err := enrol.Join(context.Background(), line, request, nil)
	if err != nil {
		return err
	}
	if err := writeIdentity([]byte(welcome.Chain), []byte(welcome.Roots), []byte(welcome.Lists)); err != nil {
		return err
	}
	return membership.EnrolmentOf(*welcome).Save("/var/lib/dcol/collective")
}

const ownFiles = "/var/lib/dcol"

func newKey(name string) (request []byte, err error) {
	if err := os.MkdirAll(ownFiles, 0o755); err != nil {
		return nil, err
	}
	key, err := collective.NewKey(filepath.Join(ownFiles, "me.key"))
	if err != nil {
		return nil, err
	}
	return collective.NewRequest(key, name)
}

func writeIdentity(chain, roots, lists []byte) error {
	for name, data := range map[string][]byte{"me.crt": chain, "ca.crt": roots, "ca.crl": lists} {
		if err := os.WriteFile(filepath.Join(ownFiles, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
