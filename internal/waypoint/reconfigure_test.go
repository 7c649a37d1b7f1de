package waypoint

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/units"
)

// New terms count at once: for mappings that exist, for requests, in the kernel's table, and they can be taken back.
func TestReconfigure(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		denied := netip.PrefixFrom(serverNumber(1).Addr(), 32)
		if err := w.Reconfigure(Terms{Deny: []netip.Prefix{denied}, DenyPorts: []uint16{25, 6667}}); err != nil {
			t.Fatal(err)
		}
		if list, err := w.Mappings(); err != nil || len(list) > 0 {
			t.Errorf("the mapping to a denied server stays: %+v, %v", list, err)
		}
		if code := refusal(t, w, aliceAt, serverNumber(1)); code != wire.DestinationForbidden {
			t.Errorf("a request for it: %v", code)
		}
		state, _, err := h.table.Load()
		if err != nil || !slices.Equal(state.ForbiddenPorts, []uint16{25, 6667}) {
			t.Errorf("the table has ports %v, %v", state.ForbiddenPorts, err)
		}
		later := time.Now().Add(time.Hour)
		minute := later.Hour()*60 + later.Minute()
		hours := []units.Window{{First: time.Monday, Last: time.Sunday, From: minute, To: (minute + 60) % (24 * 60)}}
		if err := w.Reconfigure(Terms{Hours: hours}); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, w, h, wire.OutsideHours, time.Hour)
		if err := w.Reconfigure(Terms{}); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, w, h, 0, 0)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
	})
}
