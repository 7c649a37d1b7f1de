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

// A second uplink is only for a connection whose first one has a longer round trip than the threshold, from its beginning or
// later. Then messages leave the first one.
func TestPolicyDelayThreshold(t *testing.T) {
	w := withUplinksOf(t, testbed.BackendEmulator, "\n[[policy]]\nuse = \"fullmesh\"\nabove_rtt = \"100ms\"\n")
	config, err := w.read(alice, etc+"dcol.toml")
	if err != nil {
		t.Fatal(err)
	}
	w.configure(alice, strings.Replace(string(config), `selection = "oldest"`, `selection = "worth"`, 1)) // the default
	w.restart(alice)
	x := w.curl(w.url())
	w.subflows("direct up")
	x.endsWell()
	w.host(server).Command(w.life(), program, "run", "--", "socat", "TCP4-LISTEN:8000,fork", "EXEC:cat").Start()
	w.listens(server, 8000)
	w.host(alice).Command(w.life(), program, "run", "--", "bash", "-c",
		fmt.Sprintf("exec 3<>/dev/tcp/%v/8000; while echo x >&3 && read -u 3; do sleep 0.3; done", w.addr4(server))).Start()
	w.have(8000, "direct up")
	far := testbed.LinkParams{Rate: 20_000_000, Delay: 80 * time.Millisecond}
	if err := w.net.SetLink(alice, far, far); err != nil {
		t.Fatal(err)
	}
	var direct, uplink uint64
	w.eventually("messages leave the first path", func() error {
		c, err := w.connectionTo(8000)
		if err != nil {
			return err
		}
		if len(c.Subflows) != 2 {
			return fmt.Errorf("it has %+v", c.Subflows)
		}
		const some = 10 // bytes: five messages
		if now := c.Subflows[0].BytesSent; now != direct {
			direct, uplink = now, c.Subflows[1].BytesSent
		}
		since := c.Subflows[1].BytesSent - uplink
		return holds(since >= some, "%d bytes left on the second path since the last one on the first", since)
	})
	x = w.curl(w.url())
	w.have(80, "direct up", "uplink up")
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

// A firewall forgets connections that were silent for 30 s, and drops their packets. What the server sends after 45 s arrives
// on the connection whose policy refreshes it, because that is probed before. Nothing arrives on the other one.
func TestPolicyRefresh(t *testing.T) {
	w := withUplinks(t, `
[[policy]]
use     = "fullmesh"
uplinks = ["FIRST"]
refresh = true
ports   = [8000]

[[policy]]
use     = "fullmesh"
uplinks = ["FIRST"]
ports   = [8001]
`)
	w.run(router, "nft", "table inet forgetful { chain forward { type filter hook forward priority 0; ct state invalid drop; }; }")
	w.sysctl(router, "net.netfilter.nf_conntrack_tcp_loose", "0") // only a SYN begins a connection
	w.sysctl(router, "net.netfilter.nf_conntrack_tcp_timeout_established", "30")
	const silence, first, both = 45 * time.Second, int64(len("first\n")), int64(len("first\nlate\n"))
	say := fmt.Sprintf("SYSTEM:echo first; sleep %.0f; echo late; sleep 600", silence.Seconds())
	fetch := func(port int) *transfer {
		w.host(server).Command(w.life(), program, "run", "--", "socat", fmt.Sprintf("TCP4-LISTEN:%d,fork", port), say).Start()
		w.listens(server, port)
		x := w.transfer(alice, program, "run", "--", "socat", "-u", fmt.Sprintf("TCP4:%v:%d", w.addr4(server), port), "-")
		w.eventually("the connection works", func() error { return holds(x.got.Load() == first, "%d bytes came", x.got.Load()) })
		return x
	}
	forgotten, refreshed := fetch(8001), fetch(8000)
	before, err := w.connectionTo(8000)
	if err != nil {
		t.Fatal(err)
	}
	w.within(silence+patience, "what the server said late has come", func() error {
		return holds(refreshed.got.Load() == both, "%d bytes came", refreshed.got.Load())
	})
	if n := forgotten.got.Load(); n != first {
		t.Errorf("%d bytes came without refresh: the firewall has forgotten nothing", n)
	}
	if now, err := w.connectionTo(8000); err != nil || len(now.Subflows) != 1 || now.Subflows[0].Local != before.Local {
		t.Errorf("the firewall has forgotten the connection, too: %+v, %v", now, err)
	}
}

// A network throttles connections to a sixth of their rate when they have carried 6 MB. With refresh, a subflow from another
// port takes the place of the throttled one, and carries at the full rate.
func TestPolicyRefreshOfThrottled(t *testing.T) {
	w := withUplinksOf(t, testbed.BackendEmulator, "\n[[policy]]\nuse = \"fullmesh\"\nuplinks = [\"FIRST\"]\nrefresh = true\n")
	const full = 2e6 // bits a second
	line := testbed.LinkParams{Rate: full, Delay: 10 * time.Millisecond, Queue: 40e3}
	if err := w.net.SetLink(alice, line, line); err != nil {
		t.Fatal(err)
	}
	w.run(router, "nft", `table inet throttling { chain forward { type filter hook forward priority 0
		ct bytes > 6000000 limit rate over 40 kbytes/second burst 40 kbytes drop
	}; }`)
	w.sysctl(router, "net.netfilter.nf_conntrack_acct", "1") // before the connection begins
	w.host(alice).Command(w.life(), program, "run", "--", "curl", "--silent", "--output", "/dev/null", w.url()).Start()
	c := w.subflows("direct up")
	first := c.Subflows[0].Local
	w.within(45*time.Second+patience, "another subflow takes the place of the throttled one", func() error {
		c, err := w.only()
		if err != nil {
			return err
		}
		if len(c.Subflows) != 1 || c.Subflows[0].Local == first {
			return fmt.Errorf("it has %+v", c.Subflows)
		}
		rate := c.Subflows[0].ReceiveRate
		return holds(rate > full/2, "it carries %.0f bit/s", rate)
	})
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
