package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// The agent follows the operator's order of kinds, and each detour shows why its kind was chosen.
func TestOrderOfKinds(t *testing.T) {
	w := withKinds(newWorld(t), "wireguard", "openvpn", "in-band", "mapped")
	w.startBoth()
	all := []string{"wireguard", "openvpn", "in-band", "mapped"}
	for _, kind := range all {
		w.kindIs(kind, "ready")
	}
	if s := w.mustStatus(bob).Serving; strings.Join(s.Offers, " ") != strings.Join(all, " ") {
		t.Errorf("bob offers %q", s.Offers)
	}
	for _, c := range []struct {
		order     []string
		kind, why string
	}{
		{all, "wireguard", "wireguard comes first of what bob offers"},
		{[]string{"openvpn", "wireguard", "in-band"}, "openvpn", "openvpn comes first of what bob offers"},
		{[]string{"in-band", "wireguard"}, "in-band", "in-band comes first of what bob offers"},
		// A mapping must be requested from bob first.
		{[]string{"mapped", "wireguard", "in-band"}, "wireguard", "no mapping was at hand"},
	} {
		w.configure(alice, clientOfAll(kindsLine(c.order...), w.addr4(bob).String()))
		w.restart(alice)
		var there []string
		for _, k := range w.waypoint().Kinds {
			there = append(there, k.Kind)
		}
		if fmt.Sprint(there) != fmt.Sprint(c.order) {
			t.Errorf("the status lists kinds as %q, want %q", there, c.order)
		}
		for _, kind := range c.order {
			w.kindIs(kind, "ready")
		}
		x := w.curl(w.url())
		d := detour(w.subflows("direct up", c.kind+" up"))
		if !strings.Contains(d.Why, c.why) {
			t.Errorf("of %q, %s was chosen because %q", c.order, c.kind, d.Why)
		}
		if shown := w.dcol(alice, "status"); !strings.Contains(shown, d.Why) || !strings.Contains(shown, "via bob ("+d.Kind+")") {
			t.Errorf("dcol status does not say so:\n%s", shown)
		}
		x.endsWell()
	}
	// What is not offered is passed over.
	w.configure(bob, waypointConfig(labAllowed+"offers = [\"openvpn\", \"mapped\"]\n"))
	w.configure(alice, clientOfAll("", w.addr4(bob).String()))
	w.restart(bob)
	w.restart(alice)
	w.kindIs("wireguard", "not-offered")
	w.kindIs("in-band", "not-offered")
	w.kindIs("openvpn", "ready")
	x := w.curl(w.url())
	if d := detour(w.subflows("direct up", "openvpn up")); !strings.Contains(d.Why, "openvpn comes first of what bob offers") {
		t.Errorf("it was chosen because %q", d.Why)
	}
	x.endsWell()
}

// Three subflows by way of two waypoints that give different kinds; either can go, and
// what is left carries on.
func TestTwoWaypointsOfTwoKinds(t *testing.T) {
	w := withKinds(newWorld(t))
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective"))
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(waypointConfig(labAllowed+"offers = [\"wireguard\"]\n"), bob, mallory))
	w.configure(alice, clientOfAll("subflows = 3\nkinds = [\"wireguard\", \"in-band\"]\n", w.addr4(bob).String())+
		"[[client.waypoint]]\nname = \"mallory\"\naddresses = [\""+w.addr4(mallory).String()+"\"]\n")
	w.start(mallory)
	w.startBoth()
	w.eventually("each waypoint has what it offers ready", func() error {
		var ready []string
		for _, v := range w.mustStatus(alice).Client.Waypoints {
			for _, k := range v.Kinds {
				if k.State == "ready" {
					ready = append(ready, v.Name+" "+k.Kind)
				}
			}
		}
		return holds(fmt.Sprint(ready) == "[bob in-band mallory wireguard]", "ready are %q", ready)
	})
	x := w.curl(w.url())
	w.subflows("direct up", "in-band up", "wireguard up")
	for _, v := range w.mustStatus(alice).Client.Waypoints {
		if v.Subflows != 1 {
			t.Errorf("%s carries %d subflows, want 1", v.Name, v.Subflows)
		}
	}
	for _, gone := range []string{bob, mallory} {
		w.cut()
		w.link(gone, true)
		x.goesOn()
		w.link(gone, false)
		w.mend()
		w.subflows("direct up", "in-band up", "wireguard up")
	}
	x.endsWell()
}
