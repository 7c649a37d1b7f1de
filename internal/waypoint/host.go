package waypoint

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/bpf/inband"
)

// addressesChanged looks at the interfaces and addresses there are now. Nothing may lead to this
// host itself.
func (w *Waypoint) addressesChanged() {
	w.attach(time.Now())
	changed, err := w.readOwn()
	if err != nil {
		w.log.Warn("cannot read the host's addresses", "err", err)
		return
	}
	if !changed {
		return
	}
	if err := w.write(func() error { return w.kernel.rules.SetForbidden(w.forbidden) }); err != nil {
		w.log.Error("detours may lead to this host itself", "err", err)
	}
	if err := w.remove(w.takeForbidden()); err != nil {
		w.log.Error("mappings lead to this host itself", "err", err)
	}
}

// readOwn reads the addresses of this host, and what is forbidden with them.
func (w *Waypoint) readOwn() (changed bool, err error) {
	list, err := w.kernel.own()
	if err != nil {
		return false, err
	}
	own := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		own[a.Addr] = true
	}
	if w.own != nil && maps.Equal(own, w.own) {
		return false, nil
	}
	w.own = own
	w.forbidden = w.policy.Forbidden(slices.Collect(maps.Keys(own)))
	return true, nil
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
