package e2e

import (
	"strconv"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/testbed"
)

// A path that strips the option, and one that drops SYNs that have it: one join does not
// come up, the mapped detour takes its place, and the next connection loses no time. What
// was learned of one network is not held against another.
func TestPathStripsOption(t *testing.T) { testBadPath(t, testbed.StripOptions) }

func TestPathDropsOption(t *testing.T) { testBadPath(t, testbed.DropOptions) }

func testBadPath(t *testing.T, box testbed.Middlebox) {
	w := withKinds(newWorld(t))
	w.middlebox(box)
	w.startBoth()
	w.kindIs("in-band", "ready") // nothing is known yet
	// Map another port: a stripped SYN would match a mapping at the server's port.
	w.listen(bob, 80)
	first := w.curl(w.url())
	c := w.subflows("direct up", "mapped up")
	// Where the failure comes at once, it is not known yet what it means.
	why := detour(c).Why
	if !strings.Contains(why, "in-band does not get through on this path since") && !strings.Contains(why, "in-band rests after a failure") {
		t.Errorf("the detour was chosen because %q", why)
	}
	w.kindIs("in-band", "resting", "does not get through on this path since")
	if shown := w.dcol(alice, "status"); !strings.Contains(shown, "bob, in-band is resting: in-band does not get through") {
		t.Errorf("dcol status says\n%s", shown)
	}
	if n := w.asked(); n != 2 {
		t.Errorf("%d subflows were asked for, want 2: the one that failed and the one that came up", n)
	}
	first.goesOn()

	second := w.curl(w.url())
	w.connections(2, "direct up", "mapped up")
	if n := w.asked(); n != 3 {
		t.Errorf("%d subflows were asked for, want 3: the path is not tried again", n)
	}
	w.cut()
	first.goesOn()
	second.goesOn()
	w.mend()
	if accepted := w.inBand().Accepted; accepted != 0 {
		t.Errorf("bob accepted %d in-band SYNs", accepted)
	}
	second.endsWell()

	// The user moves to a network without the middlebox.
	w.middlebox(testbed.NoMiddlebox)
	w.renumber("10.200.0", 0)
	w.kindIs("in-band", "ready")
	third := w.curl(w.url())
	w.eventually("the next connection has an in-band detour", func() error {
		all := w.mustStatus(alice).Client.Connections
		return holds(hasKind(all, "in-band"), "there are %+v", all)
	})
	third.goesOn()
	third.endsWell()
	first.goesOn()
	first.endsWell()
}

// A path that becomes bad under a detour that was proven: connections that are there go
// on, and new ones get mapped detours after a few failures.
func TestPathBecomesBad(t *testing.T) {
	w := withKinds(newWorld(t))
	w.startBoth()
	w.kindIs("in-band", "ready")
	first := w.curl(w.url())
	w.subflows("direct up", "in-band up")
	w.middlebox(testbed.DropOptions)
	w.cut()
	first.goesOn()
	w.mend()
	second := w.curl(w.url())
	w.connections(2, "direct up", "in-band up", "mapped up")
	second.goesOn()
	second.endsWell()
	first.goesOn()
	first.endsWell()
}

func (w *world) middlebox(box testbed.Middlebox) {
	w.Helper()
	if err := w.host(router).SetMiddlebox(box); err != nil {
		w.Fatal(err)
	}
}

// asked returns how many subflows alice's agent has requested from the kernel.
func (w *world) asked() uint64 {
	w.Helper()
	return w.mustStatus(alice).Client.Counters.SubflowsAsked
}

// connections waits until alice has n connections, each with a detour and only subflows of these kinds and
// states.
func (w *world) connections(n int, allowed ...string) {
	w.Helper()
	w.eventually("connections have detours", func() error {
		all := w.mustStatus(alice).Client.Connections
		if len(all) != n {
			return holds(false, "there are %d", len(all))
		}
		for _, c := range all {
			if len(c.Subflows) < 2 {
				return holds(false, "there is %+v", c)
			}
			for _, s := range c.Subflows {
				if !strings.Contains(strings.Join(allowed, ","), s.Kind+" "+string(s.State)) {
					return holds(false, "there is %+v", s)
				}
			}
		}
		return nil
	})
}

func hasKind(all []api.Connection, kind string) bool {
	for _, c := range all {
		for _, s := range c.Subflows {
			if s.Kind == kind && s.State == "up" {
				return true
			}
		}
	}
	return false
}

// listen starts a program on the host that listens on a TCP port and answers with its own name.
func (w *world) listen(host string, port int) {
	w.Helper()
	cmd := w.host(host).Command(w.life(), "socat", "-U", "TCP-LISTEN:"+strconv.Itoa(port)+",fork,reuseaddr", "EXEC:hostname")
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go cmd.Wait() // it ends with its host
	w.listens(host, port)
}

// listens waits until a program on the host listens on a TCP port.
func (w *world) listens(host string, port int) {
	w.Helper()
	w.eventually(host+" listens on port "+strconv.Itoa(port), func() error {
		return holds(w.run(host, "ss", "-Htln", "sport = :"+strconv.Itoa(port)) != "", "nothing listens")
	})
}
