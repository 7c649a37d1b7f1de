package inband

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

// kept lists the maps that a later process adopts. The other maps hold nothing between packets.
var kept = []string{"clients", "seen", "counts"}

// MaxSlots is the greatest number of keys for one address. Several members may be behind it, and each may have an old
// key besides its new one.
const MaxSlots = 32

// Slot is one key of a client's address.
type Slot struct {
	Key        Key
	Mark       uint32 // of packets that are authentic under the key
	ClientPort bool   // the authenticator covers the client's port
	Expires    time.Time
}

// Counters counts accepted and rejected SYNs with the option since the filters were first attached.
type Counters struct {
	Accepted, Malformed, UnknownAddress, BadAuthenticator, Replayed uint64
}

// Receiver checks the SYNs with the option that reach one network namespace: that of the thread that opened it. Its
// methods may be called from any goroutine.
//
// An accepted SYN is not accepted again while it is among the last 65536. After that, the expiry of its key prevents
// replays.
type Receiver struct {
	objects receiveObjects

	mu     sync.Mutex // of filter
	filter tcfilter.Filter
}

// OpenReceiver loads the programs; Attach attaches them. If filters of an earlier process still exist, it continues
// with their keys, counters and accepted SYNs. This needs CAP_SYS_ADMIN. Without it the receiver starts empty, and
// the old filters work until Attach replaces them. Only the bits of markMask are changed in packets' marks.
func OpenReceiver(markMask uint32) (_ *Receiver, err error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	r := &Receiver{}
	defer func() {
		if err != nil {
			handle.Close()
			_ = r.objects.Close()
		}
	}()
	spec, err := loadReceive()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs of the receiver: %w", err)
	}
	if err := spec.Variables["mark_mask"].Set(markMask); err != nil {
		return nil, fmt.Errorf("set the receiver's marks: %w", err)
	}
	adopted, err := tcfilter.Adopt(handle, nameReceive, spec, kept...)
	if err != nil {
		return nil, err
	}
	defer adopted.Close()
	if err := spec.LoadAndAssign(&r.objects, &ebpf.CollectionOptions{MapReplacements: adopted}); err != nil {
		return nil, unavailable(fmt.Errorf("load the receiver's programs: %w", err))
	}
	r.filter = newFilter(handle, tcfilter.AtIngress, nameReceive, r.objects.ReceiveEthernet, r.objects.ReceiveHeaderless)
	return r, nil
}

// Attach attaches the program to exactly these interfaces, given by their indexes. Call it again when they change. A
// missing interface is not an error. An error that wraps *InterfaceError concerns one interface; the others are
// attached.
func (r *Receiver) Attach(interfaces []int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.filter.Set(interfaces)
}

// Set replaces the keys of an IPv4 address atomically. Without slots it removes the address. The first slot under
// which a SYN is authentic determines the mark.
func (r *Receiver) Set(client netip.Addr, slots []Slot) error {
	if !client.Unmap().Is4() {
		return fmt.Errorf("set the keys of %v: not an IPv4 address", client)
	}
	if len(slots) == 0 {
		if err := r.objects.Clients.Delete(wire32(client)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove the keys of %v: %w", client, err)
		}
		return nil
	}
	if len(slots) > MaxSlots {
		return fmt.Errorf("set the keys of %v: %d keys, more than the %d one address can have", client, len(slots), MaxSlots)
	}
	now, boot, err := clocks()
	if err != nil {
		return err
	}
	value := receiveSlots{Count: uint64(len(slots))}
	for i, slot := range slots {
		to := &value.Slot[i]
		to.Key.Half = slot.Key.halves()
		to.Mark = slot.Mark
		if slot.ClientPort {
			to.PortMask = 0xffff
		}
		to.Expires = uint64(max(0, boot+slot.Expires.Sub(now)))
	}
	if err := r.objects.Clients.Put(wire32(client), &value); err != nil {
		return fmt.Errorf("set the keys of %v: %w", client, err)
	}
	return nil
}

// Slots returns the keys of an address, including those of an earlier process. Only IPv4 addresses have keys.
func (r *Receiver) Slots(client netip.Addr) ([]Slot, error) {
	if !client.Unmap().Is4() {
		return nil, nil
	}
	var value receiveSlots
	err := r.objects.Clients.Lookup(wire32(client), &value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys of %v: %w", client, err)
	}
	now, boot, err := clocks()
	if err != nil {
		return nil, err
	}
	var slots []Slot
	for _, from := range value.Slot[:min(value.Count, MaxSlots)] {
		slots = append(slots, Slot{
			Key: keyOf(from.Key.Half), Mark: from.Mark, ClientPort: from.PortMask != 0,
			Expires: now.Add(time.Duration(from.Expires) - boot),
		})
	}
	return slots, nil
}

// Addresses returns the addresses that have keys.
func (r *Receiver) Addresses() ([]netip.Addr, error) {
	var (
		addresses []netip.Addr
		address   [4]byte
		value     receiveSlots
	)
	all := r.objects.Clients.Iterate()
	for all.Next(&address, &value) {
		addresses = append(addresses, netip.AddrFrom4(address))
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("list the addresses that have keys: %w", err)
	}
	return addresses, nil
}

// Counters reads the counters.
func (r *Receiver) Counters() (Counters, error) {
	var perCPU []receiveCounters
	if err := r.objects.Counts.Lookup(uint32(0), &perCPU); err != nil {
		return Counters{}, fmt.Errorf("read the counters of in-band detours: %w", err)
	}
	var sum Counters
	for _, c := range perCPU {
		sum.Accepted += c.Accepted
		sum.Malformed += c.Malformed
		sum.UnknownAddress += c.UnknownAddress
		sum.BadAuthenticator += c.BadAuthenticator
		sum.Replayed += c.Replayed
	}
	return sum, nil
}

// Close closes the receiver. Filters and keys remain active; see CleanUp.
func (r *Receiver) Close() error {
	r.filter.Handle.Close()
	return r.objects.Close()
}

// clocks returns the time by Go's clock and by that of the programs.
func clocks() (now time.Time, boot time.Duration, err error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return now, 0, fmt.Errorf("read the time since boot: %w", err)
	}
	return time.Now(), time.Duration(ts.Nano()), nil
}
