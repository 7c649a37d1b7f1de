package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// mobile is alice's second link.
const mobile = "mobile"

// withUplinks returns a network in which alice has two uplinks, and a policy.
func withUplinks(t *testing.T, policy string) *world {
	t.Helper()
	return withUplinksOf(t, testbed.BackendVeth, policy)
}

// withUplinksOf is withUplinks with links of a kind, and more keys of [client]. In the policy, FIRST and MOBILE are the
// interfaces, and MALLORY is that host's address.
func withUplinksOf(t *testing.T, backend, policy string, client ...string) *world {
	w := newWorldWith(t, func(s *testbed.Spec) {
		s.Backend = backend
		s.Links = append(s.Links, testbed.LinkSpec{Name: mobile, A: alice, B: router, Cost: 9})
	})
	standard(w)
	policy = strings.NewReplacer("FIRST", w.host(alice).Interface(alice), "MOBILE", w.host(alice).Interface(mobile),
		"MALLORY", w.addr4(mallory).String()).Replace(policy)
	w.configure(alice, clientConfig("tls_ports = []\n"+strings.Join(client, ""), w.addr4(bob).String())+policy)
	for metric, link := range []string{alice, mobile} {
		dev := w.host(alice).Interface(link)
		gateway := strings.Fields(w.run(router, "ip", "-4", "-o", "addr", "show", "dev", w.host(router).Interface(link)))[3]
		gateway, _, _ = strings.Cut(gateway, "/")
		w.run(alice, "ip", "route", "replace", "default", "via", gateway, "dev", dev, "onlink", "metric", fmt.Sprint(100+metric))
	}
	w.start(bob)
	w.start(alice)
	return w
}

// Both uplinks and both waypoints carry one connection, once it has carried a megabyte: one subflow over each.
func TestPolicyFullMesh(t *testing.T) {
	w := withUplinks(t, `
[[client.waypoint]]
name      = "mallory"
addresses = ["MALLORY"]

[[policy]]
use         = "fullmesh"
detours     = true
after_bytes = "1MB"
`)
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective"))
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(waypointConfig(labAllowed), bob, mallory))
	w.start(mallory)
	w.run(server, "ip", "mptcp", "limits", "set", "subflows", "6") // more than there are paths
	w.waypointsAre("up", bob, mallory)
	x := w.curl(w.url())
	x.goesOn() // a megabyte
	const of = "direct up, mapped up through %s, mapped up through %s, uplink up through %s"
	want := fmt.Sprintf(of, bob, mallory, w.host(alice).Interface(mobile))
	have := func() string {
		c, err := w.only()
		if err != nil {
			return err.Error()
		}
		var list []string
		for _, s := range c.Subflows {
			list = append(list, strings.TrimSuffix(fmt.Sprintf("%s %s through %s", s.Kind, s.State, s.Waypoint), " through "))
		}
		slices.Sort(list)
		return strings.Join(list, ", ")
	}
	w.eventually(want, func() error { return holds(have() == want, "it has %s", have()) })
	x.goesOn()
	if now := have(); now != want {
		t.Errorf("it has %s", now)
	}
	x.endsWell()
}

// A second uplink is only for a connection whose first one has a longer round trip than the threshold.
func TestPolicyDelayThreshold(t *testing.T) {
	w := withUplinksOf(t, testbed.BackendEmulator, "\n[[policy]]\nuse = \"fullmesh\"\nabove_rtt = \"100ms\"\n")
	x := w.curl(w.url())
	w.subflows("direct up")
	x.endsWell()
	far := testbed.LinkParams{Rate: 20_000_000, Delay: 80 * time.Millisecond}
	if err := w.net.SetLink(alice, far, far); err != nil {
		t.Fatal(err)
	}
	x = w.curl(w.url())
	w.subflows("direct up", "uplink up")
	x.goesOn()
	x.endsWell()
}

// A connection has one uplink at a time.
func TestPolicySingle(t *testing.T) {
	w := withUplinks(t, "\n[[policy]]\nuse = \"single\"\nports = [80]\n")
	x := w.curl(w.url())
	w.subflows("direct up")
	x.goesOn()
	w.run(alice, "ip", "-4", "addr", "flush", "dev", w.host(alice).Interface(alice))
	x.goesOn()
	w.subflows("uplink up")
	x.endsWell()
}

// This host only receives when its first path becomes silent. The server goes over to the backup, which dcol makes the path
// that carries, until the first works again.
func TestPolicyBackupOnSilence(t *testing.T) {
	w := withUplinks(t, "\n[[policy]]\nuse = \"backup\"\nports = [80]\n")
	x := w.curl(w.url())
	w.subflows("direct up", "uplink backup")
	x.goesOn()
	w.cut()
	x.goesOn()
	w.subflows("direct backup", "uplink up")
	x.goesOn()
	w.mend()
	w.subflows("direct up", "uplink backup")
	x.endsWell()
}

// The policy of a program's cgroup comes before one for all.
func TestPolicyOfCgroup(t *testing.T) {
	group := newCgroup(t)
	w := withUplinks(t, fmt.Sprintf("\n[[policy]]\nuse = \"ndiffports\"\nsubflows = 3\n\n[[policy]]\nuse = \"fullmesh\"\ncgroup = %q\n", group))
	w.inGroup(group, program, "run", "--", "curl", "--silent", "--no-buffer", "http://"+port(w.addr4(server), 81)+"/file")
	w.curl("http://" + port(w.addr4(server), 82) + "/file")
	w.have(81, "direct up", "uplink up")
	w.have(82, "direct up", "port up", "port up")
}

// Several subflows on one path.
func TestPolicyPorts(t *testing.T) {
	w := withUplinks(t, "\n[[policy]]\nuse = \"ndiffports\"\nsubflows = 3\n")
	x := w.curl(w.url())
	w.subflows("direct up", "port up", "port up")
	x.goesOn()
	x.endsWell()
}
