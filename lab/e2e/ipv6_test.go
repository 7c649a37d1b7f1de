package e2e

import (
	"testing"
)

// Server and waypoint over IPv6.
func TestIPv6(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(alice, clientConfig("", w.addr6(bob).String()))
	w.startBoth()
	x := w.curl("http://" + port(w.addr6(server), 80) + "/file")
	c := w.detoured()
	if at := detour(c).Remote.Addr(); at != w.addr6(bob) {
		t.Errorf("the detour is at %v, want %v", at, w.addr6(bob))
	}
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
	w.fails(alice, []string{"map", "[::1]:80", "--via", bob}, "not forwarded")
	w.fails(alice, []string{"map", "[fe80::1]:80", "--via", bob}, "link-local")
	w.fails(alice, []string{"map", "[ff02::1]:80", "--via", bob}, "multicast")
	w.fails(alice, []string{"map", port(w.addr4(server), 80), "--via", bob}, "no waypoint", "family")
}

// A waypoint with addresses of both families serves servers of both.
func TestBothFamilies(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(alice, clientConfig("", w.addr4(bob).String(), w.addr6(bob).String()))
	w.startBoth()
	w.eventually("both addresses of bob are up", func() error {
		for _, s := range w.mustStatus(alice).Client.Waypoints {
			if err := holds(s.State == "up", "%v is %s: %s", s.Addr, s.State, s.Why); err != nil {
				return err
			}
		}
		return nil
	})
	for _, url := range []string{w.url(), "http://" + port(w.addr6(server), 80) + "/file"} {
		x := w.curl(url)
		c := w.detoured()
		if detour(c).Remote.Addr().Is4() != c.Remote.Addr().Is4() {
			t.Errorf("a detour of the other family: %+v", c)
		}
		x.goesOn()
		x.endsWell()
		w.eventually("the connection is forgotten", func() error {
			all := w.mustStatus(alice).Client.Connections
			return holds(len(all) == 0, "there is %+v", all)
		})
	}
}

// A subflow to an IPv6 server uses a tunnel. No other program's traffic does, even from the tunnel's address.
func TestIPv6ByTunnel(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"wireguard", "openvpn"} {
		t.Run(kind, func(t *testing.T) {
			w := withKinds(newWorld(t), kind)
			w.startBoth()
			w.kindIs(kind, "ready")
			url := "http://" + port(w.addr6(server), 80) + "/file"
			x := w.curl(url)
			d := detour(w.subflows("direct up", kind+" up"))
			w.cut()
			x.goesOn()
			w.mend()
			inside := d.Local.Addr().String()
			if r := w.try(alice, "curl", "--silent", "--interface", inside, "--max-time", "9", "--range", "0-99", "--output", "/dev/null", url); r.code == 0 {
				t.Errorf("another program goes by the tunnel from %s", inside)
			}
			x.endsWell()
		})
	}
}
