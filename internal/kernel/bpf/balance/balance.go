package balance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

// Limits of the program.
const (
	MaxRoutes = 65536 // of each family
	MaxHops   = 64    // of a route
)

const (
	filterName = tcfilter.Prefix + "balance"
	priority   = 220 // after filters that forward packets without the kernel's routing
	maxLength  = 32
	maxKeys    = 34
)

// Cipher selects the function that decodes ports.
type Cipher uint32

// The ciphers.
const (
	Speck Cipher = iota
	Skip32
	RC5
)

// Function has the constants by which all routers of a network decode ports, and the id of this router.
type Function struct {
	Cipher Cipher
	Keys   []uint16 // keys of the rounds; Skip32: the bytes of its key
	Table  []uint8  // table of Skip32's rounds
	Radix  uint32
	Powers []uint32 // powers of the radix, one for each position of a path selector
	Router uint32
}

// Route is a multipath route. Slots[n] is the place of the next hop with number n among the next hops of the kernel
// that work. Without Slots the kernel chooses.
type Route struct {
	Prefix netip.Prefix
	Slots  []uint8
}

// Counts counts packets since the program began. Decoded ones had an existing next hop in their ports. Hashed ones did
// not, so the kernel hashed them.
type Counts struct{ Decoded, Hashed uint64 }

// UnavailableError reports why this host cannot load the program, and how to fix it.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("next hops cannot be chosen by ports here: %v (%s)", e.Err, e.Fix)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

const fixKernel = "needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"

// Balancer chooses next hops in one network namespace: that of the thread that opened it. Its methods may be called
// from any goroutine.
type Balancer struct {
	objects balanceObjects

	mu       sync.Mutex // guards the fields below, and changes to the maps
	links    tcfilter.Links
	filter   tcfilter.Filter
	filtered bool // uses filter, because the kernel has no TCX
	routes   map[netip.Prefix][]uint8
}

// Open loads the program; Attach attaches it. It removes the filters of a process that was killed. An error that wraps
// *UnavailableError means that this host cannot load the program.
func Open(f Function) (_ *Balancer, err error) {
	if err := CleanUp(); err != nil {
		return nil, err
	}
	spec, err := loadBalance()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program that chooses next hops: %w", err)
	}
	if err := f.set(spec); err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	b := &Balancer{routes: map[netip.Prefix][]uint8{}}
	defer func() {
		if err != nil {
			handle.Close()
			_ = b.objects.Close()
		}
	}()
	if err := spec.LoadAndAssign(&b.objects, nil); err != nil {
		return nil, &UnavailableError{tcfilter.FixFor(err, fixKernel), fmt.Errorf("load the program that chooses next hops: %w", err)}
	}
	if err := b.objects.Programs.Put(uint32(0), b.objects.Balance); err != nil {
		return nil, &UnavailableError{tcfilter.FixFor(err, fixKernel), fmt.Errorf("lead the filter to the program that chooses next hops: %w", err)}
	}
	b.links = tcfilter.Links{Handle: handle, Attach: ebpf.AttachTCXIngress, Program: b.objects.Balance}
	b.filter = tcfilter.Filter{
		Handle: handle, Parent: tcfilter.AtIngress, Name: filterName, Priority: priority, Protocol: unix.ETH_P_ALL,
		Program: func(*netlink.LinkAttrs) (*ebpf.Program, error) { return b.objects.Enter, nil },
	}
	return b, nil
}

// set writes the function's constants into the program.
func (f Function) set(spec *ebpf.CollectionSpec) error {
	if f.Radix < 2 || len(f.Powers) == 0 || len(f.Powers) > maxLength || len(f.Keys) > maxKeys {
		return fmt.Errorf("radix %d with %d positions and %d keys is more than the program has room for", f.Radix, len(f.Powers), len(f.Keys))
	}
	var keys [maxKeys]uint16
	copy(keys[:], f.Keys)
	var places [256]uint32
	for ttl := range places {
		places[ttl] = f.Powers[ttl%len(f.Powers)]
		if f.Radix&(f.Radix-1) == 0 {
			places[ttl] = uint32(bits.TrailingZeros32(places[ttl]))
		}
	}
	var table [256]uint8
	copy(table[:], f.Table)
	for name, value := range map[string]any{
		"cipher": uint32(f.Cipher), "radix": f.Radix, "places": places, "keys": keys, "router": f.Router, "table_f": table,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s of the program that chooses next hops: %w", name, err)
		}
	}
	return nil
}

// Attach attaches the program to exactly these interfaces, given by their indexes. Call it again when they change. A
// missing interface is not an error. The calling thread must be in the network namespace of the Balancer.
func (b *Balancer) Attach(interfaces []int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.filtered {
		err := b.links.Set(interfaces)
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return err
		}
		b.filtered = true
	}
	return b.filter.Set(interfaces)
}

// Set makes the program choose for exactly these routes. It does not interrupt the choice for routes that stay as they
// are. Packets on routes with fewer than two next hops or more than MaxHops are left to the kernel, even if there is a
// route to a shorter prefix.
func (b *Balancer) Set(routes []Route) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := map[netip.Prefix][]uint8{}
	for _, r := range routes {
		if len(r.Slots) < 2 || len(r.Slots) > MaxHops {
			r.Slots = nil
		}
		wanted[r.Prefix.Masked()] = r.Slots
	}
	var failed []error
	for prefix := range b.routes {
		if _, stays := wanted[prefix]; stays {
			continue
		}
		table, key := b.place(prefix)
		if err := table.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			failed = append(failed, fmt.Errorf("remove the route to %v: %w", prefix, err))
			continue
		}
		delete(b.routes, prefix)
	}
	for prefix, slots := range wanted {
		if old, known := b.routes[prefix]; known && slices.Equal(old, slots) {
			continue
		}
		table, key := b.place(prefix)
		if err := table.Put(key, hopsOf(slots)); err != nil {
			failed = append(failed, fmt.Errorf("add the route to %v: %w", prefix, err))
			continue
		}
		b.routes[prefix] = slots
	}
	return errors.Join(failed...)
}

// hopsOf returns the next hops with their hashes. The kernel divides the hashes evenly among the next hops. The margins
// at the ends of each part are larger than the rounding error of either division.
func hopsOf(slots []uint8) *balanceHops {
	const margin = 0x800
	if len(slots) == 0 {
		return &balanceHops{}
	}
	count := uint64(len(slots))
	hops := &balanceHops{Count: uint32(count), Span: uint32((1<<32 - 2*margin) / count)}
	for number, slot := range slots {
		hops.Lowest[number] = uint32((uint64(slot)<<32 + margin) / count)
	}
	return hops
}

// place returns the map and the key of a prefix.
func (b *Balancer) place(p netip.Prefix) (*ebpf.Map, any) {
	bytes := p.Addr().AsSlice()
	if p.Addr().Is4() {
		return b.objects.Routes4, &balancePrefix4{Bits: uint32(p.Bits()), Dst: binary.NativeEndian.Uint32(bytes)}
	}
	key := &balancePrefix6{Bits: uint32(p.Bits())}
	for i := range key.Dst {
		key.Dst[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return b.objects.Routes6, key
}

// Counts returns the program's counts.
func (b *Balancer) Counts() (sum Counts, err error) {
	var all []balanceCounts
	if err := b.objects.Counted.Lookup(uint32(0), &all); err != nil {
		return sum, fmt.Errorf("read what was counted: %w", err)
	}
	for _, c := range all {
		sum.Decoded += c.Decoded
		sum.Hashed += c.Hashed
	}
	return sum, nil
}

// Close lets the kernel choose alone, and removes the filters.
func (b *Balancer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.links.Set(nil)
	if b.filtered {
		err = errors.Join(err, b.filter.Set(nil))
	}
	b.filter.Handle.Close()
	return errors.Join(err, b.objects.Close())
}

// CleanUp removes the filters of a process that was killed from all interfaces of the calling thread's network namespace.
func CleanUp() error { return tcfilter.CleanUp(filterName) }
