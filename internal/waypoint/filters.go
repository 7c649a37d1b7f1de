package waypoint

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// attachEvery is the longest time until filters that somebody removed are put back.
const attachEvery = 30 * time.Second

// filters keeps the eBPF programs at the interfaces by which members may come, and the keys that they check in-band
// SYNs with.
type filters struct {
	receiver   synReceiver // nil: SYNs are not authenticated
	fast       fastPath    // nil: there is no fast path
	interfaces func() ([]netstate.Interface, error)
	leases     *lease.Leases
	problems   problems
	log        *slog.Logger

	due         time.Time           // when the programs are to be looked after
	stale       map[netip.Addr]bool // addresses whose keys could not be written
	notAttached string              // why some interfaces have no program for SYNs
	notFast     string              // why some interfaces have no fast path
}

// attach has packets looked at on every interface by which members may come: SYNs, and those of
// established connections. These are all but the tunnels'.
func (f *filters) attach(tunnels []string, now time.Time) {
	if f.receiver == nil && f.fast == nil {
		return
	}
	f.due = now.Add(attachEvery)
	outside, err := f.outside(tunnels)
	if err == nil && f.fast != nil {
		f.attachFast(outside)
	}
	if f.receiver == nil {
		return
	}
	if err == nil {
		err = f.receiver.Attach(outside)
	}
	if err == nil {
		f.notAttached = ""
		f.problems.clear(problemFilters)
		return
	}
	if text := err.Error(); text != f.notAttached {
		f.log.Warn("in-band SYNs are not recognised on some interfaces", "err", err)
		f.notAttached = text
	}
	// That one kind of interface cannot have a filter is not for the operator to mend.
	if unfit := (*inband.InterfaceError)(nil); !errors.As(err, &unfit) {
		f.problems.set(problemFilters, err.Error())
		f.due = now
	}
}

// attachFast has established connections looked for on every interface that has them.
func (f *filters) attachFast(interfaces []int) {
	err := f.fast.Attach(interfaces)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.notFast {
		f.log.Warn("some interfaces have no fast path", "err", err)
	}
	f.notFast = text
}

// outside returns the interfaces by which members may come.
func (f *filters) outside(tunnels []string) ([]int, error) {
	list, err := f.interfaces()
	if err != nil {
		return nil, err
	}
	var outside []int
	for _, i := range list {
		if !i.Loopback && !slices.Contains(tunnels, i.Name) {
			outside = append(outside, i.Index)
		}
	}
	return outside, nil
}

// check puts back filters that somebody removed, and tries again what failed.
func (f *filters) check(tunnels []string, now time.Time) {
	if !f.due.After(now) {
		f.attach(tunnels, now)
	}
	for addr := range f.stale {
		if f.writeKeys(addr) != nil {
			return
		}
	}
}

// writeKeys gives eBPF the keys of an address. What fails is tried again.
func (f *filters) writeKeys(addr netip.Addr) error {
	if f.receiver == nil {
		return nil
	}
	if err := f.receiver.Set(addr, f.leases.Keys(addr)); err != nil {
		f.stale[addr] = true
		f.problems.set(problemKeys, err.Error())
		return fmt.Errorf("set the keys of in-band detours from %v: %w", addr, err)
	}
	if delete(f.stale, addr); len(f.stale) == 0 {
		f.problems.clear(problemKeys)
	}
	return nil
}

// left returns the keys that an agent before us left for those who are admitted.
func (f *filters) left(admissions []rules.Admission) map[netip.Addr][]inband.Slot {
	keys := make(map[netip.Addr][]inband.Slot)
	for _, a := range admissions {
		if f.receiver == nil || a.Kind != wire.InBand {
			continue
		}
		slots, err := f.receiver.Slots(a.Addr)
		if err != nil {
			f.log.Warn("keys of an earlier agent cannot be read; they end when another member reconnects from the same address", "address", a.Addr, "err", err)
		}
		keys[a.Addr] = slots
	}
	return keys
}

// dropForeignKeys removes the keys of addresses from which nobody is admitted.
func (f *filters) dropForeignKeys() {
	if f.receiver == nil {
		return
	}
	addrs, err := f.receiver.Addresses()
	if err != nil {
		f.log.Warn("keys of an earlier agent stay until they expire", "err", err)
		return
	}
	for _, addr := range addrs {
		if !f.leases.Admits(addr) {
			_ = f.writeKeys(addr) // noted and tried again
		}
	}
}
