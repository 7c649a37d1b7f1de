package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// With nothing configured but the waypoint, detours are in-band ones, and the waypoint
// holds nothing for them before they come.
func TestInBandByDefault(t *testing.T) {
	w := withKinds(newWorld(t))
	for _, host := range []string{alice, bob} {
		// As packaging/dcol.service has it: ProtectControlGroups.
		w.run(host, "sh", "-c", `for at in $(findmnt --noheadings --list --output TARGET --types cgroup2); do
			mount -o remount,bind,ro "$at" || exit; done`)
	}
	w.startBoth()
	w.kindIs("in-band", "ready")
	x := w.curl(w.url())
	c := w.subflows("direct up", "in-band up")
	d := detour(c)
	if d.Remote.Addr() != w.addr4(bob) || d.Remote.Port() != 80 || d.Waypoint != bob {
		t.Errorf("the detour is %+v, want one to port 80 of %v", d, w.addr4(bob))
	}
	if !strings.Contains(d.Why, "in-band comes first of what bob offers") {
		t.Errorf("the status says that it was chosen because %q", d.Why)
	}
	w.cut()
	x.goesOn()
	w.mend()
	if flows := w.ourFlows(); len(flows) != 1 {
		t.Errorf("bob forwards %q, want one connection", flows)
	}
	if s := w.inBand(); !s.Authenticated || s.Addresses != 1 || s.Accepted != 1 || s.BadAuthenticator+s.Malformed+s.Replayed+s.UnknownAddress != 0 {
		t.Errorf("bob says of in-band SYNs: %+v", s)
	}
	log := w.run(bob, "cat", "/var/log/dcol/attribution.jsonl")
	if !strings.Contains(log, `"event":"flow-opened","member":"alice"`) || !strings.Contains(log, fmt.Sprintf(`"port":80,"server":"%v:80"`, w.addr4(server))) {
		t.Errorf("the attribution log does not say who went where, and how:\n%s", log)
	}
	x.endsWell()
}

// Any port of the server will do; on a TLS port the detour waits for the handshake. A
// service of the waypoint's own on the same port is there for strangers and members as if
// nothing were.
func TestInBandPorts(t *testing.T) {
	w := newWorld(t)
	standard(w, w.nginxTLS(), "server { listen 8080; }")
	w.useKinds()
	for _, n := range []int{80, 443, 8080} {
		w.listen(bob, n)
	}
	w.startBoth()
	w.kindIs("in-band", "ready")
	captured := w.capture()
	for _, n := range []int{443, 80, 8080} {
		url := "http://" + port(w.addr4(server), n) + "/file"
		if n == 443 {
			url = strings.Replace(url, "http", "https", 1)
		}
		x := w.curl("--insecure", url)
		d := detour(w.subflows("direct up", "in-band up"))
		if d.Remote.Port() != uint16(n) {
			t.Errorf("the detour to port %d is at %v", n, d.Remote)
		}
		w.cut()
		x.goesOn()
		w.mend()
		for _, host := range []string{mallory, alice} {
			at := fmt.Sprintf("TCP:%v", port(w.addr4(bob), n))
			if said := w.run(host, "socat", "-u", at, "-"); said != bob+"\n" {
				t.Errorf("bob's own service on port %d says to %s %q", n, host, said)
			}
		}
		if n == 443 {
			captured.handshakeStaysDirect(n)
		}
		x.endsWell()
		w.eventually("the connection is forgotten", func() error {
			all := w.mustStatus(alice).Client.Connections
			return holds(len(all) == 0, "there is %+v", all)
		})
	}
	if s := w.inBand(); s.Accepted != 3 || s.BadAuthenticator+s.Malformed+s.Replayed+s.UnknownAddress != 0 {
		t.Errorf("bob says of in-band SYNs: %+v", s)
	}
}

// The option has no room for an IPv6 server, which gets a mapped detour. An IPv4 server gets an in-band
// detour with either family of socket.
func TestInBandAndIPv6(t *testing.T) {
	w := withKinds(newWorld(t))
	w.configure(alice, clientOfAll("", w.addr4(bob).String(), w.addr6(bob).String()))
	w.startBoth()
	w.eventually("in-band is ready at one address of bob, and mapped at both", func() error {
		var ready []string
		for _, at := range w.mustStatus(alice).Client.Waypoints {
			for _, k := range at.Kinds {
				if k.State == "ready" {
					ready = append(ready, at.Addr.Addr().String()+" "+k.Kind)
				}
			}
		}
		want := fmt.Sprintf("[%[1]v in-band %[1]v mapped %[2]v mapped]", w.addr4(bob), w.addr6(bob))
		return holds(fmt.Sprint(ready) == want, "ready are %q, want %s", ready, want)
	})
	for _, c := range []struct{ url, kind string }{
		{"http://" + port(w.addr6(server), 80) + "/file", "mapped"},
		{fmt.Sprintf("http://[::ffff:%v]/file", w.addr4(server)), "in-band"},
	} {
		x := w.curl(c.url)
		w.subflows("direct up", c.kind+" up")
		w.cut()
		x.goesOn()
		w.mend()
		x.endsWell()
		w.eventually("the connection is forgotten", func() error {
			all := w.mustStatus(alice).Client.Connections
			return holds(len(all) == 0, "there is %+v", all)
		})
	}
}

// Without TCP timestamps a SYN has no room for the authenticator: mapped detours do.
func TestInBandWithoutTimestamps(t *testing.T) {
	w := withKinds(newWorld(t))
	w.sysctl(alice, "net.ipv4.tcp_timestamps", "0")
	w.startBoth()
	w.kindIs("in-band", "down", "TCP timestamps are off", "sysctl -w net.ipv4.tcp_timestamps=1")
	x := w.curl(w.url())
	if why := detour(w.subflows("direct up", "mapped up")).Why; !strings.Contains(why, "TCP timestamps are off") {
		t.Errorf("the detour was chosen because %q", why)
	}
	x.endsWell()
	// Switched off later, when a detour has been through already.
	w.sysctl(alice, "net.ipv4.tcp_timestamps", "1")
	w.restart(alice)
	w.kindIs("in-band", "ready")
	x = w.curl(w.url())
	w.subflows("direct up", "in-band up")
	w.sysctl(alice, "net.ipv4.tcp_timestamps", "0")
	other := w.curl(w.url())
	w.connections(2, "direct up", "in-band up", "mapped up")
	w.cut()
	x.goesOn()
	other.goesOn()
	w.mend()
	x.endsWell()
	other.endsWell()
}

// Keys are replaced every few seconds while connections are opened all the time: no SYN
// comes with a key that is good no longer, or not yet.
func TestKeysRotate(t *testing.T) {
	w := withKinds(newWorld(t), "in-band")
	w.configure(bob, waypointConfig(labAllowed+fmt.Sprintf("mapping_lifetime = \"%ds\"\n", 10*slowness())))
	w.startBoth()
	w.kindIs("in-band", "ready")
	x := w.curl(w.url())
	before := w.subflows("direct up", "in-band up")
	// Three at a time, so that a slow machine is done in time, too: most of it is waiting.
	const script = `one() { "$0" run -- curl --silent --fail --output /dev/null --limit-rate 1M --range 0-800000 "$1"; }
	for i in $(seq 10); do
		one "$@" & a=$!
		one "$@" & b=$!
		one "$@" && wait $a && wait $b || exit 1
	done`
	for range 2 {
		if r := w.try(alice, "bash", "-c", script, program, w.url()); r.code != 0 {
			t.Fatalf("%v", r)
		}
	}
	s := w.inBand()
	// On a busy machine some of these connections end before their detours come up.
	up := w.mustStatus(alice).Client.Counters.SubflowsUp
	if s.BadAuthenticator+s.Malformed+s.Replayed+s.UnknownAddress != 0 || s.Accepted < 40 || up < 40 {
		t.Errorf("of 61 connections %d detours came up, and bob says of their SYNs: %+v", up, s)
	}
	w.kindIs("in-band", "ready")
	if now := w.subflows("direct up", "in-band up"); now.Token != before.Token || detour(now).Local != detour(before).Local {
		t.Errorf("the detour of before is another one now: %+v, before %+v", now, before)
	}
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
}

// A destination that the waypoint refuses is also refused in-band, and the client does not retry endlessly.
func TestForbiddenInBand(t *testing.T) {
	w := withKinds(newWorld(t))
	w.configure(bob, waypointConfig(""))
	w.startBoth()
	w.kindIs("in-band", "ready")
	reached := w.watchServer()
	x := w.curl(w.url())
	w.eventually("the status says why the waypoint is not used", func() error {
		s := w.waypoint()
		return holds(s.State == "up" && strings.Contains(s.Why, "private"), "it says %q", s.Why)
	})
	w.subflows("direct up")
	x.goesOn()
	w.kindIs("in-band", "ready") // for other servers
	time.Sleep(4 * time.Second)  // for what should not happen
	if n := w.asked(); n > 2 {
		t.Errorf("%d subflows to a forbidden server were tried", n)
	}
	if n := reached(); n != "0" {
		t.Errorf("%s SYNs reached the server by way of bob", n)
	}
	x.goesOn()
	x.endsWell()
}
