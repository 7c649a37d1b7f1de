package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/lab/testbed"
)

// carol is one more waypoint.
const carol = "carol"

// What members measured of a waypoint travels in their records, and `dcol why` shows it. Once this host's own measurements
// contradict what one of them claimed of another waypoint, nothing counts that it claims.
func TestClaims(t *testing.T) {
	w := newWorldWith(t, func(s *testbed.Spec) {
		s.Hosts = append(s.Hosts, testbed.HostSpec{Name: carol})
		s.Links = append(s.Links, testbed.LinkSpec{Name: carol, A: carol, B: router})
	})
	w.coordinate(server)
	w.serve()
	w.start(server)
	const serves = "[waypoint]\n" + labAllowed + "port_mapping = false\n"
	// bob is honest: nothing is lost through carol. mallory lies: everybody loses.
	const honest, lie = 0.001, 0.2
	w.join(carol, "waypoint", serves)
	w.start(carol)
	for host, measured := range map[string]map[string]float64{bob: {carol: honest}, mallory: {carol: lie, bob: lie}} {
		w.join(host, "client+waypoint", "[client]\nexclude = []\nkinds = [\"mapped\"]\n"+serves)
		w.remembers(host, measured)
		w.start(host)
	}
	w.join(alice, "client", "")
	w.configureMember(alice, "client", "waypoints = 3\n[client]\nexclude = []\nkinds = [\"mapped\"]\n")
	w.start(alice)
	w.waypointsAre("up", bob, carol, mallory)
	w.knowsAll(alice, bob, mallory, carol, server)

	// alice has measured nothing. The median of two is the better one.
	w.hears("loss below 0.5 % (2 members, not confirmed)")
	// She has measured bob herself, as bob does.
	a := w.agents[slices.IndexFunc(w.agents, func(a *agent) bool { return a.host == alice })]
	a.stop()
	w.remembers(alice, map[string]float64{bob: honest})
	w.start(alice)
	w.hears("loss below 0.5 % (1 member, not confirmed); 1 member not believed")
}

// remembers writes the file of what a host measured earlier: the loss through waypoints towards several networks, and those in
// more. The host's agent must not run.
func (w *world) remembers(host string, lost map[string]float64, more ...string) {
	w.Helper()
	var trails []map[string]any
	for waypoint, loss := range lost {
		for _, network := range append(more, "198.51.100.0/24", "203.0.113.0/24", "192.0.2.0/24") {
			trails = append(trails, map[string]any{
				"waypoint": waypoint, "network": network, "at": time.Now(), "trip_ms": 20, "loss": loss, "packets": 5000,
			})
		}
	}
	var network []netip.Addr
	err := w.host(host).Do(func() error {
		addresses, err := netstate.OpenAddresses()
		if err != nil {
			return err
		}
		defer addresses.Close()
		network, err = addresses.Network()
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	data, err := json.Marshal(map[string]any{"version": 2, "addresses": network, "measured": trails})
	if err != nil {
		w.Fatal(err)
	}
	w.write(host, "/var/lib/dcol/client-measured.json", data, 0o600)
}

// hears waits until `dcol why` shows alice what other members measured of carol.
func (w *world) hears(words string) {
	w.Helper()
	w.eventually(fmt.Sprintf("alice hears of carol: %s", words), func() error {
		// Detours to the server are asked for when a connection begins.
		w.dcol(alice, "run", "--", "curl", "--silent", "--fail", "--range", "0-1000", "--output", "/dev/null", w.url())
		why := w.dcol(alice, "why", w.addr4(server).String()+":80")
		return holds(strings.Contains(why, "other members on carol: "+words), "%s", why)
	})
}
