package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// A waypoint's link becomes slow, and then useless. The client recognises both, and connections do not
// suffer.
func TestSlowWaypoint(t *testing.T) {
	w := standard(newWorldOn(t, testbed.BackendAuto))
	delay := func(d time.Duration) {
		t.Helper()
		p := testbed.LinkParams{Delay: d}
		if err := w.net.SetLink(bob, p, p); err != nil {
			t.Fatal(err)
		}
	}
	delay(400 * time.Millisecond)
	w.startBoth()
	if rtt := w.waypoint().RTT; rtt < 700 {
		t.Errorf("the status says that a round trip over 0.8 s takes %v ms", rtt)
	}
	w.dcol(alice, "map", port(w.addr4(server), 80), "--via", bob)
	x := w.curl(w.url())
	before := w.detoured()
	x.goesOn()

	delay(2 * time.Second)
	x.goesOn()
	if c, err := w.only(); err != nil || c.Token != before.Token {
		t.Errorf("the connection did not live on: %+v, %v", c, err)
	}
	// A member that comes now cannot even make a session.
	other := w.curl(w.url())
	w.restart(alice)
	w.waypointDown("did not answer", "is its agent running")
	other.goesOn()
	if why := w.waypoint().Why; !strings.Contains(why, w.addr4(bob).String()) {
		t.Errorf("the status says %q", why)
	}

	delay(0)
	w.waypointUp()
	x.goesOn()
	x.endsWell()
	other.endsWell()
}
