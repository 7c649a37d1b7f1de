package waypoint

import (
	"slices"

	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// checkStopped keeps members from opening connections whose servers the log has no room to name now, and lets them
// open connections again when it has. It is called each second: what such a member opens before is named in the log
// too, as connections_per_second bounds it.
func (w *Waypoint) checkStopped() {
	var now []rules.MemberID
	for _, name := range w.record.Full() {
		if m := w.members.known(name); m != nil {
			now = append(now, m.ID)
		}
	}
	slices.Sort(now)
	if slices.Equal(now, w.stopped) {
		return
	}
	before := w.stopped
	w.stopped = now
	if err := w.write(func() error { return w.kernel.rules.SetStopped(now) }); err != nil {
		w.stopped = before // tried again
		w.log.Error("members are not kept from opening connections, or let open them again, as they should be", "err", err)
		return
	}
	for _, id := range now {
		if !slices.Contains(before, id) {
			w.log.Warn("a member has called so many servers beyond its share of the log that it may open no connections for some minutes",
				"member", w.members.of(id).Name)
		}
	}
}
