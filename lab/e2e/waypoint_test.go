package e2e

import (
	"testing"
)

// A waypoint that is down, comes, crashes, comes back and vanishes, while one
// download goes on all the time.
func TestWaypointComesAndGoes(t *testing.T) {
	w := standard(newWorld(t))
	w.start(alice)
	w.waypointDown("bob did not answer", "is its agent running")
	w.fails(alice, []string{"map", w.addr4(server).String() + ":80", "--via", bob}, "no session with bob", "is its agent running")
	x := w.curl(w.url())
	x.goesOn()
	w.subflows("direct up")

	ofBob := w.start(bob)
	w.waypointUp()
	before := w.detoured()

	session := w.waypoint()
	ofBob.kill()
	w.cut()
	x.goesOn() // the kernel goes on forwarding
	w.mend()

	ofBob = w.start(bob)
	w.waypointBack(session)
	w.unchanged(before)

	w.link(bob, true)
	x.goesOn() // over the direct path
	w.waypointDown("stopped answering", "network between you")
	w.link(bob, false)
	w.waypointUp()
	w.detoured()
	ofBob.stop()
	w.waypointDown("was stopped")
	x.endsWell()
}
