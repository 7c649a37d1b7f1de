package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/testbed"
)

// public is the home router's outside address. miniupnpd does not accept the lab's private addresses.
const public = "62.0.0.9"

// atHome returns a world whose bob is behind a home router, which has a public address, and whose mallory is
// another waypoint outside.
func atHome(t *testing.T) *world {
	t.Helper()
	w := newWorldWith(t, func(s *testbed.Spec) { s.Hosts[0].NAT = testbed.NAT{Inside: []string{bob}} })
	w.found("collective", alice, bob, mallory)
	for _, host := range []string{alice, bob, mallory} {
		w.identify("collective", host)
	}
	w.serve()
	w.run(router, "ip", "address", "add", public+"/32", "dev", w.host(router).Interface(alice))
	// Before the lab's own masquerading.
	w.run(router, "nft", fmt.Sprintf(`table ip public {
		chain out { type nat hook postrouting priority 90; ip saddr %v oifname != %q snat to %s; }
	}`, w.addr4(bob), w.host(router).Interface(bob), public))
	w.configure(mallory, strings.ReplaceAll(waypointConfig(labAllowed), bob, mallory))
	observers := ""
	for _, host := range []string{alice, mallory} {
		observers += fmt.Sprintf("\n[[client.waypoint]]\nname = %q\naddresses = [%q]\n", host, w.addr4(host))
	}
	w.configure(bob, waypointConfig(labAllowed+"offers = [\"wireguard\"]\n")+observers)
	both := strings.Replace(clientOfAll(kindsLine("wireguard"), public), `["client"]`, `["client", "waypoint"]`, 1)
	w.configure(alice, both)
	return w
}

// miniupnpd runs on the router until the test ends, or stop is called.
func (w *world) miniupnpd(lines ...string) (stop func()) {
	w.Helper()
	if _, err := exec.LookPath("miniupnpd"); err != nil {
		w.Skip("needs miniupnpd: apt-get install miniupnpd-nftables")
	}
	dir := w.TempDir()
	config := filepath.Join(dir, "conf")
	outside, inside := w.host(router).Interface(alice), w.host(router).Interface(bob)
	text := strings.Join(append([]string{
		"ext_ifname=" + outside, "ext_ip=" + public, "listening_ip=" + inside, "http_port=5000", "ipv6_disable=yes", "system_uptime=no",
		"upnp_table_name=upnp", "upnp_nat_table_name=upnp", "upnp_forward_chain=ports",
		"upnp_nat_chain=ports_in", "upnp_nat_postrouting_chain=ports_out", "uuid=3c6e6b1a-1c0f-4f9e-9d3b-0d6f0c1f0001",
	}, lines...), "\n") + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	w.run(router, "nft", `table inet upnp; delete table inet upnp; table inet upnp {
		chain in { type nat hook prerouting priority -100; jump ports_in; }
		chain out { type nat hook postrouting priority 95; jump ports_out; }
		chain forward { type filter hook forward priority 0; jump ports; }
		chain ports {}
		chain ports_in {}
		chain ports_out {}
	}`)
	cmd := w.host(router).Command(w.life(), "miniupnpd", "-d", "-f", config, "-P", filepath.Join(dir, "pid"))
	log, err := os.Create(filepath.Join(w.dir, "miniupnpd.log"))
	if err != nil {
		w.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	log.Close()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	w.Cleanup(stop)
	w.eventually("miniupnpd listens", func() error {
		out := w.run(router, "ss", "-Hlun")
		return holds(strings.Contains(out, ":5351") || strings.Contains(out, ":1900"), "sockets: %s", out)
	})
	return stop
}

// outsideIs waits until bob's agent sees its way to the outside like this.
func (w *world) outsideIs(what string, like func(o api.Outside) bool) {
	w.Helper()
	w.eventually("from outside, bob is "+what, func() error {
		o := w.mustStatus(bob).Serving.Outside
		return holds(o != nil && like(*o), "it is %+v", o)
	})
}

// A waypoint behind a home router has it open the port, and is found there, also when the router has
// restarted; when its agent stops, the port closes.
func TestRouterOpensPort(t *testing.T) {
	t.Parallel()
	for protocol, lines := range map[string][]string{
		"PCP":  {"enable_natpmp=yes", "enable_upnp=no"},
		"UPnP": {"enable_natpmp=no", "enable_upnp=yes"},
	} {
		t.Run(protocol, func(t *testing.T) {
			w := atHome(t)
			w.miniupnpd(lines...)
			w.start(mallory)
			_, ofBob := w.startBoth()
			at := netip.MustParseAddrPort(public + ":45672")
			w.outsideIs("reachable", func(o api.Outside) bool {
				return o.Leaves == "reachable" && o.Router == protocol && o.Address == at && o.Answered == 2 && o.Problem == ""
			})
			w.kindIs("wireguard", "ready")
			x := w.curl(w.url())
			w.subflows("direct up", "wireguard up")
			w.cut()
			x.goesOn()
			w.mend()
			x.endsWell()
			if out := w.try(bob, program, "doctor").stdout; !strings.Contains(out, "the router has opened the port ("+protocol+")") {
				t.Errorf("the doctor says\n%s", out)
			}
			ofBob.stop()
			if rules := w.run(router, "nft", "list", "table", "inet", "upnp"); strings.Contains(rules, "45672") {
				t.Errorf("the port is open although the agent has stopped\n%s", rules)
			}
		})
	}
}

// If a router opens no ports, only its NAT's own behaviour helps, and doctor shows what to do.
func TestRouterOpensNoPort(t *testing.T) {
	w := atHome(t)
	w.start(mallory)
	w.start(alice)
	w.start(bob)
	w.outsideIs("behind a NAT that was found out", func(o api.Outside) bool {
		return o.Router == "" && o.Leaves == "punchable" && o.NAT == "port-restricted cone NAT" && strings.HasSuffix(o.Problem, "opens no ports: it speaks neither PCP nor NAT-PMP nor UPnP")
	})
	out := w.try(bob, program, "doctor").stdout
	for _, want := range []string{"port-restricted cone NAT", "45672/udp to " + w.addr4(bob).String()} {
		if !strings.Contains(out, want) {
			t.Errorf("the doctor does not say %q\n%s", want, out)
		}
	}
}

// A waypoint without NAT that anybody reaches needs no router, so nothing is said of one that opens no ports.
func TestReachableWithoutRouter(t *testing.T) {
	w := newWorld(t)
	w.found("collective", alice, bob, mallory)
	for _, host := range []string{alice, bob, mallory} {
		w.identify("collective", host)
	}
	w.configure(mallory, strings.ReplaceAll(waypointConfig(labAllowed), bob, mallory))
	observers := ""
	for _, host := range []string{alice, mallory} {
		observers += fmt.Sprintf("\n[[client.waypoint]]\nname = %q\naddresses = [%q]\n", host, w.addr4(host))
	}
	w.configure(bob, waypointConfig(labAllowed)+observers)
	w.configure(alice, strings.Replace(clientOfAll("", w.addr4(bob).String()), `["client"]`, `["client", "waypoint"]`, 1))
	w.start(mallory)
	w.start(alice)
	w.start(bob)
	w.outsideIs("reachable without a NAT", func(o api.Outside) bool {
		return o.Leaves == "reachable" && o.NAT == "no NAT" && o.Gateway.IsValid() && o.Router == "" && o.Problem == ""
	})
	if said := w.dcol(bob, "status"); !strings.Contains(said, "; reachable\n") {
		t.Errorf("the status says\n%s", said)
	}
}

// A router that is itself behind a NAT opens a port that nobody outside can reach. The status reports it.
func TestRouterBehindAnotherNAT(t *testing.T) {
	w := atHome(t)
	w.run(router, "nft", "delete table ip public") // what others see is another address than the router's
	w.miniupnpd("enable_natpmp=yes", "enable_upnp=no")
	w.start(mallory)
	w.start(alice)
	w.start(bob)
	w.outsideIs("behind two NATs", func(o api.Outside) bool {
		return len(o.Opened) == 1 && strings.Contains(o.Problem, "another NAT") && o.Leaves == "unreachable" && o.NAT == "symmetric NAT"
	})
}
