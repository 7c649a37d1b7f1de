package coordinator

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// A waypoint that lies about its reachability is detected by others, and all are informed.
func TestLyingWaypoint(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	liar, good := w.member("liar"), w.member("good")
	checkers := []*host{w.member("x"), w.member("y"), w.member("z")}
	for _, h := range append(checkers, good, liar) {
		h.check = func(c enrol.Check) enrol.Checked {
			return enrol.Checked{ID: c.ID, Reachable: c.Name == "good", Why: "nobody answers"}
		}
		go h.answerChecks()
	}
	r := liar.record()
	r.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.66")}
	for _, err := range []error{liar.publish(r), good.publish(good.record())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range checkers {
		record := h.record()
		record.Roles, record.Addresses, record.Port = []string{directory.RoleClient}, nil, 0
		if err := h.publish(record); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "good is found good", 10*time.Second, func() bool { v, known := w.c.prober.Of("good"); return known && v.Reachable })
	eventually(t, "x is told that nothing is known of the liar yet", 20*time.Second, func() bool {
		data := checkers[0].last(enrol.TopicReachability)
		return data != nil && slices.Equal(fromJSON[enrol.Reachability](t, data).Untried, []string{"liar"})
	})
	w.shift(10 * time.Second) // the second round
	eventually(t, "x is told who lies", 20*time.Second, func() bool {
		data := checkers[0].last(enrol.TopicReachability)
		if data == nil {
			return false
		}
		m := fromJSON[enrol.Reachability](t, data)
		return slices.Equal(m.Unreachable, []string{"liar"}) && len(m.Untried) == 0
	})
	for _, m := range w.c.Members() {
		if m.Name == "liar" && (m.Reach == nil || m.Reach.Reachable || m.Reach.Why != "nobody answers") {
			t.Errorf("members say %+v", m.Reach)
		}
	}
}
