package waypoint

import (
	"errors"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// addressesChanged looks at the interfaces, addresses and links there are now.
func (w *Waypoint) addressesChanged() {
	w.attach(time.Now())
	changed, err := w.vicinity.look()
	if err != nil {
		w.log.Warn("cannot read the host's addresses and routes", "err", err)
		return
	}
	if changed {
		w.surroundingsChanged()
	}
}

// outsideChanged is told how others see the host.
func (w *Waypoint) outsideChanged(o egress.Outside) {
	if !w.vicinity.hear(o) {
		return
	}
	w.log.Info("how others see this host has changed", "addresses", o.NATs, "known", !o.Hidden)
	w.surroundingsChanged()
}

// surroundingsChanged has nothing lead to this host itself, or to what is near it.
func (w *Waypoint) surroundingsChanged() {
	w.judgeSurroundings()
	if err := w.write(func() error { return w.kernel.rules.SetForbidden(w.forbidden) }); err != nil {
		w.log.Error("detours may lead to this host itself, or to what is near it", "err", err)
	}
	if err := w.remove(w.takeForbidden()); err != nil {
		w.log.Error("mappings lead to this host itself, or to what is near it", "err", err)
	}
}

// readSurroundings is surroundingsChanged before there is a table.
func (w *Waypoint) readSurroundings() error {
	if _, err := w.vicinity.look(); err != nil {
		return err
	}
	select {
	case o := <-w.config.Outside:
		w.vicinity.hear(o)
	default: // nobody knows yet
	}
	w.judgeSurroundings()
	return nil
}

func (w *Waypoint) judgeSurroundings() {
	w.policy = w.policy.Around(w.vicinity.now)
	w.forbidden = w.policy.Forbidden()
}

// attachEvery is how late, at most, filters are put back that somebody removed.
const attachEvery = 30 * time.Second

// attach has packets looked at on every interface by which members may come: SYNs, and those of
// established connections.
func (w *Waypoint) attach(now time.Time) {
	if w.kernel.receiver == nil && w.kernel.fast == nil {
		return
	}
	w.attachDue = now.Add(attachEvery)
	outside, err := w.outside()
	if err == nil && w.kernel.fast != nil {
		w.attachFastPath(outside)
	}
	if w.kernel.receiver == nil {
		return
	}
	if err == nil {
		err = w.kernel.receiver.Attach(outside)
	}
	if err == nil {
		w.notAttached = ""
		w.problems.clear(problemFilters)
		return
	}
	if text := err.Error(); text != w.notAttached {
		w.log.Warn("in-band SYNs are not looked at on some interfaces", "err", err)
		w.notAttached = text
	}
	// That one kind of interface cannot have a filter is not for the operator to mend.
	if unfit := (*inband.InterfaceError)(nil); !errors.As(err, &unfit) {
		w.problems.set(problemFilters, err.Error())
		w.attachDue = now
	}
}

// outside is the interfaces by which members may come.
func (w *Waypoint) outside() ([]int, error) {
	list, err := w.kernel.interfaces()
	if err != nil {
		return nil, err
	}
	var outside []int
	for _, i := range list {
		if !i.Loopback && !slices.Contains(w.tunnelInterfaces, i.Name) {
			outside = append(outside, i.Index)
		}
	}
	return outside, nil
}

// checkFilters puts back filters that somebody removed, and tries again what failed.
func (w *Waypoint) checkFilters(now time.Time) {
	if !w.attachDue.After(now) {
		w.attach(now)
	}
	for addr := range w.staleKeys {
		if w.writeKeys(addr) != nil {
			return
		}
	}
}
