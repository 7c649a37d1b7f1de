package police

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

// MaxFlows is the greatest number of connections that can have a bound at a time.
const MaxFlows = 65536

const (
	filterName = tcfilter.Prefix + "police"
	priority   = 200 // before filters that forward packets without the others
	// leastBurst is the size of the largest packet that the kernel makes of several received ones (GRO).
	leastBurst = 64 << 10
	// burstTime divides a rate per second to get the burst: the data that a connection may receive above its rate after
	// it was idle.
	burstTime = 8
	// firstBurstTime divides a rate per second to get the burst that a connection has when its bound begins. A sender in
	// slow start then meets the bound with its first packets. With a whole burst, it would double its window until it
	// loses most of it.
	firstBurstTime  = 100
	leastFirstBurst = 3000
)

// ErrFull is returned if MaxFlows connections have a bound already.
var ErrFull = errors.New("too many connections have a bounded rate")

// Flow identifies the packets of one TCP connection that this host receives.
type Flow struct{ Src, Dst netip.AddrPort }

// Counts counts a connection's segments with data since it got its first bound.
type Counts struct{ Passed, Marked, Dropped uint64 }

// UnavailableError reports why this host cannot load the program, and how to fix it.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("the rate of connections cannot be bounded here: %v (%s)", e.Err, e.Fix)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

const fixKernel = "needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"

// Policer limits connections in one network namespace: that of the thread that opened it. Its methods may be called
// from any goroutine.
type Policer struct {
	objects policeObjects

	mu     sync.Mutex // guards the fields below, and changes to the map
	filter tcfilter.Filter
}

// Open loads the program; Attach attaches it. An error that wraps *UnavailableError means that this host cannot load
// the program.
func Open() (_ *Policer, err error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	p := &Policer{}
	defer func() {
		if err != nil {
			handle.Close()
			_ = p.objects.Close()
		}
	}()
	if err := loadPoliceObjects(&p.objects, nil); err != nil {
		return nil, &UnavailableError{tcfilter.FixFor(err, fixKernel), fmt.Errorf("load the program that bounds rates: %w", err)}
	}
	if err := p.objects.Programs.Put(uint32(0), p.objects.Police); err != nil {
		return nil, &UnavailableError{tcfilter.FixFor(err, fixKernel), fmt.Errorf("lead the filter to the program that bounds rates: %w", err)}
	}
	p.filter = tcfilter.Filter{
		Handle: handle, Parent: tcfilter.AtIngress, Name: filterName, Priority: priority, Protocol: unix.ETH_P_ALL,
		Program: func(*netlink.LinkAttrs) (*ebpf.Program, error) { return p.objects.Enter, nil },
	}
	return p, nil
}

// Attach attaches the program to exactly these interfaces, given by their indexes. Call it again when they change. A
// missing interface is not an error.
func (p *Policer) Attach(interfaces []int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.filter.Set(interfaces)
}

// Bound limits a connection to bitsPerSecond of IP packets from now on. It replaces an earlier bound.
func (p *Policer) Bound(flow Flow, bitsPerSecond uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := keyOf(flow)
	var b policeBucket
	err := p.objects.Buckets.LookupWithFlags(key, &b, ebpf.LookupLock)
	known := err == nil
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("look up the bound of %v: %w", flow, err)
	}
	b.Rate = max(bitsPerSecond/8, 1)
	b.Burst = max(int64(b.Rate/burstTime), leastBurst)
	if !known {
		b.Tokens = max(int64(b.Rate/firstBurstTime), leastFirstBurst)
	}
	err = p.objects.Buckets.Update(key, &b, ebpf.UpdateAny|ebpf.UpdateLock)
	if errors.Is(err, unix.E2BIG) {
		err = ErrFull
	}
	if err != nil {
		return fmt.Errorf("bound the rate of %v: %w", flow, err)
	}
	return nil
}

// Free ends the bound of a connection. It is not an error if there is none.
func (p *Policer) Free(flow Flow) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.objects.Buckets.Delete(keyOf(flow)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("end the bound of %v: %w", flow, err)
	}
	return nil
}

// Counts returns the numbers of passed, marked and dropped segments of a connection. It returns false if the connection
// has no bound.
func (p *Policer) Counts(flow Flow) (Counts, bool, error) {
	var b policeBucket
	err := p.objects.Buckets.Lookup(keyOf(flow), &b)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return Counts{}, false, nil
	}
	if err != nil {
		return Counts{}, false, fmt.Errorf("look up the bound of %v: %w", flow, err)
	}
	return Counts{b.Passed, b.Marked, b.Dropped}, true, nil
}

// Close ends all bounds and removes the filters.
func (p *Policer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.filter.Set(nil)
	p.filter.Handle.Close()
	return errors.Join(err, p.objects.Close())
}

// CleanUp removes the filters of a process that was killed from all interfaces of the calling thread's network namespace.
func CleanUp() error { return tcfilter.CleanUp(filterName) }

func keyOf(f Flow) (key policeTuple) {
	key.Src, key.Sport = words(f.Src)
	key.Dst, key.Dport = words(f.Dst)
	return key
}

// words returns an address and a port in the form that they have in packets. IPv4 is mapped into IPv6.
func words(a netip.AddrPort) (words [4]uint32, port uint16) {
	bytes := a.Addr().As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return words, binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, a.Port()))
}
