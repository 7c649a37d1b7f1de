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

// attachEvery bounds the time until filters are restored that somebody removed.
const attachEvery = 30 * time.Second

// filters keeps the eBPF programs attached to the interfaces at which members' packets arrive, and the keys with which
// the programs check in-band SYNs.
type filters struct {
	receiver   synReceiver // nil: SYNs are not authenticated
	fast       fastPath    // nil: there is no fast path
	interfaces func() ([]netstate.Interface, error)
	leases     *lease.Leases
	problems   problems
	log        *slog.Logger

	due         time.Time           // time of the next check of the programs
	stale       map[netip.Addr]bool // addresses whose keys could not be written
	notAttached string              // the reason why some interfaces have no program for SYNs
	notFast     string              // the reason why some interfaces have no fast path
}

// attach attaches the programs for SYNs and for established connections to every interface at which members'
// packets arrive: all but those of tunnels.
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
	// The operator cannot change that a kind of interface takes no filter.
	if unfit := (*inband.InterfaceError)(nil); !errors.As(err, &unfit) {
		f.problems.set(problemFilters, err.Error())
		f.due = now
	}
}

// attachFast attaches the program for established connections to the interfaces.
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

// outside returns the interfaces at which members' packets arrive.
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

// check restores filters that somebody removed, and retries keys and filters that failed.
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

// writeKeys gives the program the keys of an address. After a failure, check tries again.
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

// left returns the keys that an earlier agent left for the admitted addresses.
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

// dropForeignKeys removes the keys of addresses without an admission.
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
			_ = f.writeKeys(addr) // check tries again
		}
	}
}
