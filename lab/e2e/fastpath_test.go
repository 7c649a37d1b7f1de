package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// fast waits until bob's fast path has n connections.
func (w *world) fast(n int) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d connections are on the fast path", n), func() error {
		status, err := w.status(bob)
		if err != nil {
			return err
		}
		fast := status.Serving.FastFlows
		return holds(fast != nil && *fast == n, "the fast path has %v", fast)
	})
}

// A detour of any kind bypasses netfilter at its waypoint. Netfilter takes over when the waypoint's agent is
// killed, and the next agent restores the fast path.
func TestFastPath(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"in-band", "mapped"} {
		t.Run(kind, func(t *testing.T) {
			w := withKinds(newWorld(t), kind)
			_, ofBob := w.startBoth()
			w.kindIs(kind, "ready")
			x := w.curl(w.url())
			w.subflows("direct up", kind+" up")
			w.fast(1)
			w.cut() // the direct path
			x.goesOn()
			session := w.waypoint()
			ofBob.kill()
			x.goesOn()
			w.mend()
			ofBob = w.start(bob)
			w.waypointBack(session)
			w.fast(1)
			w.cut()
			x.goesOn()
			w.mend()
			x.endsWell()
			w.eventually("conntrack has seen the end", func() error {
				flows := strings.Join(w.ourFlows(), "\n")
				return holds(!strings.Contains(flows, "ESTABLISHED"), "conntrack has\n%s", flows)
			})
			ofBob.stop()
			w.dcol(bob, "down")
			left := w.run(bob, "tc", "qdisc", "show")
			if strings.Contains(left, "clsact") {
				t.Errorf("left:\n%s", left)
			}
		})
	}
}
