package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// waypointClosed waits until alice sees bob as closed, with these words in the reason.
func (w *world) waypointClosed(words ...string) {
	w.Helper()
	w.eventually(fmt.Sprintf("alice sees bob as closed: %q", words), func() error {
		s := w.waypoint()
		if s.State != "closed" {
			return fmt.Errorf("it is %s", s.State)
		}
		for _, word := range words {
			if !strings.Contains(s.Why, word) {
				return fmt.Errorf("it does not say %q: %s", word, s.Why)
			}
		}
		return nil
	})
	for _, k := range w.waypoint().Kinds {
		if k.State != "closed" {
			w.Errorf("%s is %s", k.Kind, k.State)
		}
	}
}

// given returns the state of bob's offer, as `dcol waypoint` shows it.
func (w *world) given() api.Given { w.Helper(); return w.mustStatus(bob).Serving.Given }

// newest is alice's youngest connection.
func (w *world) newest() api.Connection {
	w.Helper()
	all := w.mustStatus(alice).Client.Connections
	return slices.MaxFunc(all, func(a, b api.Connection) int { return a.Since.Compare(b.Since) })
}

// anotherGoesDirectly makes a second connection beside the one that there is, and checks that it has no detour.
func (w *world) anotherGoesDirectly() {
	w.Helper()
	another := w.curl(w.url())
	w.eventually("there is another connection", func() error {
		n := len(w.mustStatus(alice).Client.Connections)
		return holds(n == 2, "there are %d", n)
	})
	another.goesOn()
	if c := w.newest(); len(c.Subflows) != 1 || c.Subflows[0].Kind != "direct" {
		w.Errorf("a new connection has %+v", c.Subflows)
	}
	another.endsWell()
}

// A waypoint that is switched off keeps open detours of every kind, even if one is all that is left of a
// connection. New connections have no detour until it is switched on again.
func TestWaypointOffAndOn(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"wireguard", "openvpn", "in-band", "mapped"} {
		t.Run(kind, func(t *testing.T) {
			w := withKinds(newWorld(t), kind)
			w.startBoth()
			w.kindIs(kind, "ready")
			x := w.curl(w.url())
			w.subflows("direct up", kind+" up")

			if said := w.dcol(bob, "waypoint", "off", "--for", "3h"); !strings.Contains(said, "it is switched off, until ") {
				t.Errorf("off says:\n%s", said)
			}
			w.within(5*time.Second*time.Duration(slowness()), "alice is told", func() error {
				s := w.waypoint()
				return holds(s.State == "closed" && strings.Contains(s.Why, "switched-off until"), "bob is %s: %s", s.State, s.Why)
			})
			w.waypointClosed("use another waypoint")
			if g := w.given(); g.Open || g.Closed != "switched-off" || time.Until(g.Until) < 2*time.Hour {
				t.Errorf("bob says %+v", g)
			}
			w.fails(alice, []string{"map", port(w.addr4(server), 80), "--via", bob}, "refused")

			w.anotherGoesDirectly()

			// The state survives a restart of the agent.
			w.restart(bob)
			w.waypointClosed("switched-off until")
			w.cut()
			x.goesOn()
			w.mend()
			x.goesOn()

			if said := w.dcol(bob, "waypoint", "on"); !strings.Contains(said, "Members may open connections") {
				t.Errorf("on says:\n%s", said)
			}
			w.waypointUp()
			w.kindIs(kind, "ready")
			x.endsWell()
			x = w.curl(w.url())
			// OpenVPN's client needs up to twelve seconds to notice bob's restart. A connection that was sending
			// until then may have found the tunnel dead, and suspended it for a minute.
			w.subflowsWithin(2*patience, "direct up", kind+" up")
			x.endsWell()
		})
	}
}

// A host that stops being a waypoint forwards nothing, as soon as its agent has read the configuration.
func TestWaypointRoleDropped(t *testing.T) {
	w := withKinds(newWorld(t), "in-band", "mapped")
	forwarding := func() string { return w.run(bob, "sysctl", "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding") }
	before := forwarding()
	w.startBoth()
	w.kindIs("in-band", "ready")
	x := w.curl(w.url())
	w.subflows("direct up", "in-band up")
	w.configure(bob, fmt.Sprintf("name = %q\nroles = [\"client\"]\n", bob)+fmt.Sprintf(identityTable, bob)+
		fmt.Sprintf("[[client.waypoint]]\nname = %q\naddresses = [\"%v\"]\n", alice, w.addr4(alice)))
	w.restart(bob)
	if tables := w.run(bob, "nft", "list", "tables"); strings.Contains(tables, "dcol") {
		t.Errorf("bob has\n%s", tables)
	}
	if flows := w.ourFlows(); len(flows) > 0 {
		t.Errorf("bob forwards %q", flows)
	}
	if after := forwarding(); after != before {
		t.Errorf("bob's forwarding is\n%s, and was\n%s", after, before)
	}
	w.fails(bob, []string{"waypoint", "on"}, "this member is not a waypoint")
	w.subflows("direct up")
	x.endsWell()
}

// While one waypoint is off, connections take detours by another.
func TestOtherWaypointTakesOver(t *testing.T) {
	w := withKinds(newWorld(t))
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective"))
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(waypointConfig(labAllowed), bob, mallory))
	w.configure(alice, clientOfAll("", w.addr4(bob).String())+
		"[[client.waypoint]]\nname = \"mallory\"\naddresses = [\""+w.addr4(mallory).String()+"\"]\n")
	w.start(mallory)
	w.startBoth()
	for _, off := range []string{bob, mallory} {
		w.dcol(off, "waypoint", "off")
		w.eventually("alice knows that "+off+" is off", func() error {
			for _, v := range w.mustStatus(alice).Client.Waypoints {
				if (v.State == "closed") != (v.Name == off) || v.Name != off && kindOf(v, "in-band").State != "ready" {
					return fmt.Errorf("%s is %s", v.Name, v.State)
				}
			}
			return nil
		})
		x := w.curl(w.url())
		if d := detour(w.subflows("direct up", "in-band up")); d.Waypoint == off {
			t.Errorf("the detour is by %s, which is off", off)
		}
		x.endsWell()
		w.dcol(off, "waypoint", "on")
	}
}

func TestWaypointHours(t *testing.T) {
	w := standard(newWorld(t))
	from, to := time.Now().Add(2*time.Hour), time.Now().Add(4*time.Hour)
	w.configure(bob, waypointConfig(labAllowed+fmt.Sprintf("hours = [\"%s-%s\"]\n", from.Format("15:04"), to.Format("15:04"))))
	w.start(bob)
	w.start(alice)
	w.waypointClosed("outside-hours until", from.Format("15:04"))
	if s := w.mustStatus(bob).Serving; s.Given.Open || s.Given.Until.Format("15:04") != from.Format("15:04") || s.Sessions != 1 {
		t.Errorf("bob says %+v", s)
	}
	w.fails(alice, []string{"map", port(w.addr4(server), 80), "--via", bob}, "outside-hours", "(try again in 1h")
	x := w.curl(w.url())
	w.subflows("direct up")
	x.goesOn()
	// `on` does not override the hours, and reports that.
	if said := w.dcol(bob, "waypoint", "on"); !strings.Contains(said, "it is outside its hours, until") {
		t.Errorf("on says:\n%s", said)
	}
	w.configure(bob, waypointConfig(labAllowed+"hours = [\"00:00-24:00\"]\n"))
	w.restart(bob)
	w.detoured() // the connection that is open already
	x.endsWell()
}

// idle opens a connection to the server on which both ends have sent data and then stay silent.
func (w *world) idle() {
	w.Helper()
	cmd := w.host(server).Command(w.life(), program, "run", "--", "socat", "TCP-LISTEN:86,fork,reuseaddr", "EXEC:cat")
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go cmd.Wait() // it ends with its host
	w.eventually("it listens", func() error {
		return holds(w.run(server, "ss", "-Htln", "sport = :86") != "", "nothing listens")
	})
	w.transfer(alice, program, "run", "--", "bash", "-c",
		fmt.Sprintf("exec 3<>/dev/tcp/%v/86; echo hello >&3; read -r <&3; exec sleep 3600", w.addr4(server)))
}

// undetoured waits until each of alice's connections has the direct subflow and no other.
func (w *world) undetoured() {
	w.Helper()
	w.eventually("no connection has a detour", func() error {
		for _, c := range w.mustStatus(alice).Client.Connections {
			if len(c.Subflows) != 1 || c.Subflows[0].Kind != "direct" {
				return fmt.Errorf("there is %+v", c)
			}
		}
		return nil
	})
}

// A quota that is used up ends detours, also those on which nothing is sent, not connections, and stays
// used up.
func TestMonthlyQuota(t *testing.T) {
	w := withKinds(newWorld(t), "wireguard", "in-band")
	offers := "offers = [\"wireguard\", \"in-band\"]\n"
	w.configure(bob, waypointConfig(labAllowed+offers+"monthly_quota = \"3MB\"\nbandwidth = \"400mbit\"\n"))
	w.startBoth()
	w.kindIs("wireguard", "ready")
	w.kindIs("in-band", "ready")
	x := w.curl(w.url())
	w.idle()
	w.connections(2, "direct up", "wireguard up")
	for w.given().Open { // it may take more than one wait
		x.goesOn()
	}
	w.waypointClosed("quota-traffic until")
	w.undetoured()
	x.goesOn()
	g := w.given()
	if g.Closed != "quota-traffic" || g.UsedBytes != 3e6 || g.QuotaBytes != 3e6 || !g.Until.Equal(g.Renews) || g.Bandwidth != 400e6 {
		t.Errorf("bob says %+v", g)
	}
	if said := w.dcol(bob, "waypoint"); !strings.Contains(said, "quota: 3.0 MB of 3.0 MB used this month (100 %)") ||
		!strings.Contains(said, "this month's quota is used up, until ") {
		t.Errorf("dcol waypoint says:\n%s", said)
	}
	if flows := w.ourFlows(); len(flows) > 0 {
		t.Errorf("bob forwards %q", flows)
	}
	for _, a := range w.agents {
		if a.host == bob {
			a.kill()
		}
	}
	w.start(bob)
	w.waypointClosed("quota-traffic until")
	x.endsWell()

	// Twice as much may be given after all; what was used counts.
	w.configure(bob, waypointConfig(labAllowed+offers+"monthly_quota = \"6MB\"\n"))
	w.restart(bob)
	w.waypointUp()
	if g := w.given(); !g.Open || g.UsedBytes < 3e6 || g.UsedBytes > 4e6 {
		t.Errorf("bob says %+v", g)
	}
}

// A member with terms of its own gets what they allow, and is told why it gets no more. Other terms apply from a reload
// on: open connections continue, unless the member's quota is used up.
func TestTermsOfOneMember(t *testing.T) {
	w := withKinds(newWorld(t), "mapped")
	w.startBoth()
	w.kindIs("mapped", "ready")
	x := w.curl(w.url())
	w.subflows("direct up", "mapped up")
	config, err := w.read(bob, etc+"dcol.toml")
	if err != nil {
		t.Fatal(err)
	}
	terms := func(of, line string) {
		w.configure(bob, fmt.Sprintf("%s\n[[waypoint.member]]\nname = %q\n%s\n", config, of, line))
		if said := w.dcol(bob, "reload"); !strings.Contains(said, "waypoint.member") {
			t.Errorf("dcol reload says %q", said)
		}
	}
	refused := func(words string) {
		w.fails(alice, []string{"map", port(w.addr4(server), 80), "--via", bob}, words)
	}

	terms(mallory, `ports = [443]`) // which changes nothing for alice
	x.goesOn()
	w.subflows("direct up", "mapped up")

	terms(alice, `ports = [443]`)
	refused("port")
	w.anotherGoesDirectly()
	x.goesOn()
	w.subflows("direct up", "mapped up")

	const used = "your monthly quota at this waypoint is used up"
	terms(alice, `monthly_quota = "100kB"`)
	for range 3 { // counted each ten seconds, from the change on
		x.goesOn()
	}
	w.subflowsWithin(2*patience, "direct up")
	refused(used)
	x.goesOn()
	w.restart(bob) // what was used is on disk
	w.waypointUp()
	refused(used)

	terms(alice, `ports = [80]`)
	w.dcol(alice, "map", port(w.addr4(server), 80), "--via", bob)
	x.endsWell()
}

// A member whose servers become limited loses its tunnel, is told so at once, and shows why. When the limit ends, the tunnel
// comes back.
func TestLimitedMemberLosesItsTunnel(t *testing.T) {
	w := withKinds(newWorld(t), "wireguard", "mapped")
	w.startBoth()
	w.kindIs("wireguard", "ready")
	config, err := w.read(bob, etc+"dcol.toml")
	if err != nil {
		t.Fatal(err)
	}
	w.configure(bob, fmt.Sprintf("%s\n[[waypoint.member]]\nname = %q\nports = [80]\n", config, alice))
	w.dcol(bob, "reload")
	w.kindIs("wireguard", "not-offered", "withdrawn")
	if said := w.dcol(alice, "status"); !strings.Contains(said, "bob, wireguard is not-offered: the waypoint has withdrawn it") {
		t.Errorf("alice does not say why:\n%s", said)
	}
	if links := w.run(alice, "ip", "-brief", "link"); strings.Contains(links, "dcolwg") {
		t.Errorf("the tunnel's interface is still there:\n%s", links)
	}
	x := w.curl(w.url())
	w.subflows("direct up", "mapped up")
	x.goesOn()

	w.configure(bob, string(config))
	w.dcol(bob, "reload")
	w.kindIs("wireguard", "ready")
	x.endsWell()
}
