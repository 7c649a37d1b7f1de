package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/lab/testbed"
)

// A firewall blocks WireGuard. The status reports it, and another kind of detour is used. When the path is
// free, the tunnel comes up.
func TestWireGuardHandshakeLost(t *testing.T) {
	w := withKinds(newWorld(t), "wireguard", "in-band")
	w.block()
	w.startBoth()
	w.kindIs("wireguard", "down", "no WireGuard handshake", w.addr4(bob).String()+":45672/udp", "does that port reach the waypoint")
	x := w.curl(w.url())
	if d := detour(w.subflows("direct up", "in-band up")); !strings.Contains(d.Why, "no WireGuard handshake") {
		t.Errorf("the detour was chosen because %q", d.Why)
	}
	w.cut()
	x.goesOn()
	w.mend()
	w.run(router, "nft", "delete table inet block")
	w.kindIs("wireguard", "ready")
	y := w.curl(w.url())
	w.connections(2, "direct up", "in-band up", "wireguard up")
	if d := detour(w.mustStatus(alice).Client.Connections[1]); d.Kind != "wireguard" {
		t.Errorf("with a tunnel there is the detour %+v", d)
	}
	y.goesOn()
	// Block the path again, while connections use it.
	w.block()
	y.goesOn()
	x.goesOn()
	y.endsWell()
	x.endsWell()
}

// block drops what WireGuard sends (its messages' first word is 1 to 4, little-endian) and
// lets QUIC pass.
func (w *world) block() {
	w.Helper()
	w.run(router, "nft", "table inet block {\nchain forward {\ntype filter hook forward priority 0\n"+
		"meta l4proto udp @th,64,32 { 0x01000000, 0x02000000, 0x03000000, 0x04000000 } counter drop\n}\n}")
}

// A host without TUN, as containers often are, neither has nor gives tunnels where the
// kernel has none itself; the rest works.
func TestWithoutTUN(t *testing.T) {
	w := withKinds(newWorld(t), "wireguard", "openvpn", "mapped")
	lacking, taken := []string{"wireguard", "openvpn"}, "mapped"
	if w.try(alice, "ip", "link", "add", "probe", "type", "wireguard").code == 0 {
		w.run(alice, "ip", "link", "del", "probe")
		lacking, taken = []string{"openvpn"}, "wireguard" // the kernel's needs none
	}
	for _, host := range []string{alice, bob} {
		w.run(host, "mount", "-t", "tmpfs", "none", "/dev/net")
	}
	_, ofBob := w.startBoth()
	problems := strings.Join(w.mustStatus(bob).Problems, "\n")
	for _, kind := range lacking {
		for _, want := range []string{kind + " detours are not offered", "/dev/net/tun", "modprobe tun"} {
			if !strings.Contains(problems, want) {
				t.Errorf("bob does not say %q: %s", want, problems)
			}
		}
		w.kindIs(kind, "not-offered")
	}
	x := w.curl(w.url())
	w.subflows("direct up", taken+" up")
	x.goesOn()
	ofBob.stop()
	w.run(bob, "umount", "/dev/net")
	w.start(bob)
	for _, kind := range lacking {
		w.kindIs(kind, "down", "/dev/net/tun", "modprobe tun")
	}
	w.waypointUp()
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
}

// A waypoint's agent is killed or restarted. Connections through the tunnel pause at most, and then go on.
func TestWireGuardWaypointRestart(t *testing.T) {
	w := withKinds(newWorld(t), "wireguard")
	_, ofBob := w.startBoth()
	w.kindIs("wireguard", "ready")
	x := w.curl(w.url())
	before := w.subflows("direct up", "wireguard up")
	for _, end := range []func(*agent){(*agent).stop, (*agent).kill} {
		session, ended := w.waypoint(), time.Now()
		end(ofBob)
		x.goesOn()
		ofBob = w.start(bob)
		w.waypointBack(session)
		w.kindIs("wireguard", "ready")
		away := time.Since(ended)
		w.cut()
		x.goesOn()
		w.mend()
		now := w.subflows("direct up", "wireguard up")
		// If the waypoint was away for longer, the client may have given the detour up, as it should, and taken it again.
		if now.Token != before.Token || away < 2*time.Second && detour(now).Local != detour(before).Local {
			t.Errorf("the detour did not live on: %+v, before %+v", now, before)
		}
		before = now
	}
	x.endsWell()
}

// The client moves to another network, and then the waypoint to the other of its addresses:
// the tunnel follows. What runs in it goes on the first time; the second time the server
// would see another address, so what began before has its direct path.
func TestWireGuardRoams(t *testing.T) {
	w := withKinds(newWorld(t), "wireguard")
	w.configure(alice, clientOfAll(kindsLine("wireguard"), w.addr4(bob).String(), "10.201.0.2"))
	w.startBoth()
	leadsTo := func(addr string) {
		t.Helper()
		w.eventually("the tunnel leads to "+addr, func() error {
			var all []string
			for _, v := range w.mustStatus(alice).Client.Waypoints {
				if k := kindOf(v, "wireguard"); v.Addr.Addr().String() == addr && k.State == "ready" {
					return nil
				}
				all = append(all, fmt.Sprintf("%v is %s: %s", v.Addr, v.State, v.Why))
			}
			return fmt.Errorf("%q", all)
		})
	}
	leadsTo(w.addr4(bob).String())
	x := w.curl(w.url())
	before := w.subflows("direct up", "wireguard up")

	w.renumber("10.200.0", 0)
	w.eventually("the direct path is from the new address", func() error {
		c, err := w.only()
		return holds(err == nil && len(c.Subflows) == 2 && c.Subflows[0].Kind == "direct" && c.Subflows[0].Local.Addr().String() == "10.200.0.2", "it has %+v", c)
	})
	w.cutFrom("10.200.0.2")
	x.goesOn()
	w.mend()
	if now := w.subflows("direct up", "wireguard up"); now.Token != before.Token || detour(now).Local != detour(before).Local {
		t.Errorf("the detour did not live on: %+v, before %+v", now, before)
	}

	w.renumberHost(bob, "10.201.0", 0)
	leadsTo("10.201.0.2")
	x.goesOn()
	y := w.curl(w.url())
	w.eventually("a new connection has a detour", func() error {
		all := w.mustStatus(alice).Client.Connections
		return holds(len(all) == 2 && len(all[1].Subflows) == 2 && all[1].Subflows[1].Kind == "wireguard" && all[1].Subflows[1].State == "up", "there are %+v", all)
	})
	x.endsWell()
	w.cutFrom("10.200.0.2")
	y.goesOn()
	w.mend()
	y.endsWell()
}

// A waypoint behind a home router that lets the session's port through. In-band and mapped
// detours do not reach it, WireGuard does.
func TestWireGuardToWaypointBehindNAT(t *testing.T) { testTunnelBehindNAT(t, "wireguard") }

// OpenVPN needs a separate port.
func TestOpenVPNToWaypointBehindNAT(t *testing.T) { testTunnelBehindNAT(t, "openvpn", 1194) }

func testTunnelBehindNAT(t *testing.T, kind string, ports ...uint16) {
	w := withKinds(newWorldWith(t, func(s *testbed.Spec) {
		home := testbed.NAT{Inside: []string{bob}}
		for _, p := range append(ports, 45672) {
			home.Forwards = append(home.Forwards, testbed.PortForward{Protocol: "udp", Port: p, To: bob})
		}
		s.Hosts[0].NAT = home
	}), kind, "in-band", "mapped")
	outside, _ := w.host(router).AddrOn(alice)
	w.configure(alice, clientOfAll(kindsLine(kind, "in-band", "mapped"), outside.String()))
	w.startBoth()
	w.kindIs(kind, "ready")
	x := w.curl(w.url())
	w.subflows("direct up", kind+" up")
	w.cut()
	x.goesOn()
	w.mend()
	if n := w.asked(); n != 1 {
		t.Errorf("%d subflows were asked for, want 1", n)
	}
	x.endsWell()
}

// A tunnel uses no network that the client is in or moves to.
func TestSubnetInUse(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"wireguard", "openvpn"} {
		t.Run(kind, func(t *testing.T) {
			w := withKinds(newWorld(t), kind)
			w.startBoth()
			w.kindIs(kind, "ready")
			inside := func(x *transfer) netip.Addr {
				t.Helper()
				defer x.endsWell()
				c := w.subflows("direct up", kind+" up")
				w.cut()
				x.goesOn()
				w.mend()
				return detour(c).Local.Addr()
			}
			first := inside(w.curl(w.url()))
			lan := netip.PrefixFrom(first, 24).Masked()
			if device := w.host(alice).Interface(alice); kind == "wireguard" { // a route alone, which no session notices
				w.run(alice, "ip", "route", "add", lan.String(), "dev", device)
			} else {
				w.run(alice, "ip", "addr", "add", lan.Addr().Next().String()+"/24", "dev", device)
			}
			w.eventually("the tunnel has another address", func() error {
				out := w.run(alice, "ip", "-4", "-o", "address")
				return holds(strings.Contains(out, w.tunnelAtBob(kind)+"0 ") && !strings.Contains(out, first.String()), "alice has\n%s", out)
			})
			w.kindIs(kind, "ready")
			w.eventually("the first connection is forgotten", func() error {
				n := len(w.mustStatus(alice).Client.Connections)
				return holds(n == 0, "there are %d", n)
			})
			if second := inside(w.curl(w.url())); lan.Contains(second) {
				t.Errorf("the tunnel's address %v is in the LAN %v", second, lan)
			}
		})
	}
}

// What a waypoint's own host sends does not go into a member's tunnel, and no subnet is routed there.
func TestWaypointsOwnTraffic(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"wireguard", "openvpn"} {
		t.Run(kind, func(t *testing.T) {
			w := withKinds(newWorld(t), kind)
			w.startBoth()
			w.kindIs(kind, "ready")
			x := w.curl(w.url())
			inside := detour(w.subflows("direct up", kind+" up")).Local.Addr()
			if r := w.try(bob, "bash", "-c", fmt.Sprintf("echo question > /dev/udp/%s/53", inside)); r.code == 0 || !strings.Contains(r.stderr, "not permitted") {
				t.Errorf("bob sends to alice's end of the tunnel: %v", r)
			}
			routes := w.run(bob, "ip", "-4", "route", "show", "dev", w.tunnelAtBob(kind))
			if fields := strings.Fields(routes); len(fields) == 0 || fields[0] != inside.String() || strings.Count(routes, "\n") != 1 {
				t.Errorf("into the tunnel lead\n%s", routes)
			}
			w.cut()
			x.goesOn()
			w.mend()
			x.endsWell()
		})
	}
}

// Members cannot reach each other by way of a waypoint's tunnels.
func TestMembersInTunnels(t *testing.T) {
	w := withKinds(newWorld(t), "wireguard")
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective"))
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(clientOfAll(kindsLine("wireguard"), w.addr4(bob).String()), alice, mallory))
	w.startBoth()
	w.start(mallory)
	inside := map[string]string{}
	for _, host := range []string{alice, mallory} {
		w.eventually(host+" has a tunnel", func() error {
			k := kindOf(w.mustStatus(host).Client.Waypoints[0], "wireguard")
			return holds(k.State == "ready", "it is %s: %s", k.State, k.Why)
		})
		inside[host] = strings.Split(strings.Fields(w.run(host, "ip", "-4", "-o", "addr", "show", "dev", "dcolwg0"))[3], "/")[0]
	}
	if inside[alice] == inside[mallory] {
		t.Errorf("both members have the address %s", inside[alice])
	}
	w.listen(mallory, 8000)
	watch := w.listener(mallory)
	r := w.try(alice, "socat", "-u", fmt.Sprintf("TCP:%s:8000,bind=%s,connect-timeout=1", inside[mallory], inside[alice]), "-")
	if r.code == 0 {
		t.Errorf("alice reaches mallory: %v", r)
	}
	// Nothing of that has come before what comes now.
	send := w.sender(server)
	send(segment{from: netip.AddrPortFrom(w.addr4(server), 9), to: netip.AddrPortFrom(w.addr4(mallory), 9), flags: packet.SYN})
	first, ok := watch(func(p segment) bool { return p.flags&packet.SYN != 0 })
	if !ok || first.from.Port() != 9 {
		t.Errorf("mallory got %+v", first)
	}
	x := w.curl(w.url())
	w.subflows("direct up", "wireguard up")
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
}

// OpenVPN is not installed at an end: it says how to fix that, and the rest works.
func TestOpenVPNMissing(t *testing.T) {
	w := withKinds(newWorld(t), "openvpn", "mapped")
	path := strings.TrimSpace(w.run(alice, "sh", "-c", "PATH=$PATH:/usr/sbin command -v openvpn"))
	for _, host := range []string{alice, bob} {
		w.run(host, "mount", "--bind", "/dev/null", path)
	}
	_, ofBob := w.startBoth()
	said := strings.Join(w.mustStatus(bob).Problems, "\n")
	if !strings.Contains(said, "openvpn detours are not offered") || !strings.Contains(said, "apt-get install openvpn") {
		t.Errorf("bob says %q", said)
	}
	w.kindIs("openvpn", "not-offered")
	ofBob.stop()
	w.run(bob, "umount", path)
	w.start(bob)
	w.kindIs("openvpn", "down", "apt-get install openvpn")
	x := w.curl(w.url())
	w.detoured()
	x.goesOn()
	x.endsWell()
}

// The openvpn of either end is killed, and comes back.
func TestOpenVPNKilled(t *testing.T) {
	w := withKinds(newWorld(t), "openvpn")
	w.startBoth()
	w.kindIs("openvpn", "ready")
	x := w.curl(w.url())
	w.subflows("direct up", "openvpn up")
	for _, host := range []string{alice, bob} {
		before := w.openvpns(host)
		if len(before) != 1 {
			t.Fatalf("on %s there run %q", host, before)
		}
		w.run(host, "kill", "-9", before[0])
		x.goesOn()
		w.eventually("openvpn runs again on "+host, func() error {
			now := w.openvpns(host)
			return holds(len(now) == 1 && now[0] != before[0], "there run %q", now)
		})
		w.kindIs("openvpn", "ready")
		w.eventually("the detour is there", func() error {
			c, err := w.only()
			return holds(err == nil && len(c.Subflows) == 2, "it has %+v", c)
		})
		w.cut()
		x.goesOn()
		w.mend()
	}
	x.endsWell()
}

// openvpns returns the ids of the processes on a host.
func (w *world) openvpns(host string) []string {
	w.Helper()
	var ids []string
	for _, file := range strings.Fields(w.try(host, "sh", "-c", "grep -lx openvpn /proc/[0-9]*/comm").stdout) {
		ids = append(ids, strings.Split(file, "/")[2])
	}
	return ids
}
