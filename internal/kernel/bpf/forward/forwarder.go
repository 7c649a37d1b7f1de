package forward

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

const (
	filterName = tcfilter.Prefix + "forward"
	priority   = 210 // before filters that look at SYNs, which this one leaves alone
)

// Indexes of the map of programs.
const (
	placeIPv4 uint32 = iota
	placeIPv6
)

// Forwarder forwards connections in one network namespace: that of the thread that opened it. Its methods may be called
// from any goroutine.
//
// It works until its process ends. Its filters stay after that, and let all packets pass, until another process
// replaces them or CleanUp removes them.
type Forwarder struct {
	objects forwardObjects
	left    map[Tuple]uint64

	mu     sync.Mutex // of filter
	filter tcfilter.Filter
}

// Open loads the programs; Attach attaches them. An error that wraps *UnavailableError means that this host cannot load
// them.
func Open() (_ *Forwarder, err error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	f := &Forwarder{}
	defer func() {
		if err != nil {
			handle.Close()
			_ = f.objects.Close()
		}
	}()
	spec, err := loadForward()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs that forward: %w", err)
	}
	if f.left, err = readLeft(handle, spec); err != nil {
		return nil, err
	}
	if err := spec.LoadAndAssign(&f.objects, nil); err != nil {
		return nil, unavailable(fmt.Errorf("load the programs that forward: %w", err))
	}
	for place, program := range map[uint32]*ebpf.Program{placeIPv4: f.objects.Forward4, placeIPv6: f.objects.Forward6} {
		if err := f.objects.Programs.Put(place, program); err != nil {
			return nil, unavailable(fmt.Errorf("lead the filter to the programs that forward: %w", err))
		}
	}
	f.filter = tcfilter.Filter{
		Handle: handle, Parent: tcfilter.AtIngress, Name: filterName, Priority: priority, Protocol: unix.ETH_P_ALL,
		Program: func(*netlink.LinkAttrs) (*ebpf.Program, error) { return f.objects.Forward, nil },
	}
	return f, nil
}

// Attach forwards packets that come in over exactly these interfaces, given by their indexes. It ignores those without
// Ethernet headers and those that belong to another interface, such as ports of a bridge. Call it again when the
// interfaces change. A missing interface is not an error. An error that wraps *tcfilter.InterfaceError concerns one
// interface; the others are attached.
func (f *Forwarder) Attach(interfaces []int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var fit []int
	for _, index := range interfaces {
		link, err := f.filter.Handle.LinkByIndex(index)
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read what interface %d is like: %w", index, err)
		}
		if at := link.Attrs(); at.EncapType == "ether" && at.MasterIndex == 0 {
			fit = append(fit, index)
		}
	}
	return f.filter.Set(fit)
}

// Watch notes the sequence numbers of a connection from now on. The kernel still forwards its packets. passed is the
// initial value of the connection's counts. If the program already has the connection, nothing changes.
func (f *Forwarder) Watch(flow Flow, passed Passed) error {
	return f.add(flow, way{stage: watched, bytes: passed.Origin}, way{stage: watched, bytes: passed.Reply})
}

// Forward forwards a watched connection from now on. After an error the connection is not watched any more.
//
// The caller must have checked that the noted numbers are the connection's own, because a FIN or RST that fits them
// ends it.
func (f *Forwarder) Forward(flow Flow) error {
	origin, err1 := f.take(flow.Origin)
	reply, err2 := f.take(flow.Reply)
	if err := errors.Join(err1, err2); err != nil {
		return adding(flow, err)
	}
	if origin.Begun == 0 || reply.Begun == 0 {
		return adding(flow, errors.New("its sequence numbers are not known"))
	}
	next := func(c forwardChange) way {
		return way{stage: max(forwarded, c.Stage), numbers: c.numbers(), bytes: c.Bytes}
	}
	return f.add(flow, next(origin), next(reply))
}

func (f *Forwarder) add(flow Flow, origin, reply way) error {
	origin.in, origin.out = flow.Origin, flow.Reply.reversed()
	reply.in, reply.out = flow.Reply, flow.Origin.reversed()
	// The way back is added first: replies to packets that are forwarded here must be forwarded here too.
	if err := f.put(reply); err != nil {
		return adding(flow, err)
	}
	if err := f.put(origin); err != nil {
		_, undone := f.take(flow.Reply)
		return adding(flow, errors.Join(err, undone))
	}
	return nil
}

func adding(flow Flow, err error) error {
	if errors.Is(err, unix.E2BIG) {
		err = ErrFull
	}
	return fmt.Errorf("forward the connection of %v to %v: %w", flow.Origin.Src, flow.Origin.Dst, err)
}

// Remove returns a connection to the kernel, and returns its counts. They are zero if the program does not have the
// connection.
func (f *Forwarder) Remove(flow Flow) (Passed, error) {
	origin, err1 := f.take(flow.Origin)
	reply, err2 := f.take(flow.Reply)
	if err := errors.Join(err1, err2); err != nil {
		return Passed{}, fmt.Errorf("no longer forward the connection of %v to %v: %w", flow.Origin.Src, flow.Origin.Dst, err)
	}
	return Passed{origin.Bytes, reply.Bytes}, nil
}

// Look returns the state of a connection, or the zero value if the program does not have it.
func (f *Forwarder) Look(flow Flow) (State, error) {
	origin, err1 := f.look(flow.Origin)
	reply, err2 := f.look(flow.Reply)
	if err := errors.Join(err1, err2); err != nil {
		return State{}, fmt.Errorf("read what was forwarded of the connection of %v to %v: %w", flow.Origin.Src, flow.Origin.Dst, err)
	}
	return State{
		Passed: Passed{origin.Bytes, reply.Bytes},
		Seen:   Seen{origin.numbers(), reply.numbers()},
		Ended:  origin.Stage == ended || reply.Stage == ended,
	}, nil
}

// Left returns the bytes that an earlier process forwarded of the connections that it left behind, by the addresses of
// incoming packets. Only the first call returns them. The result is empty if the kernel does not let this process read
// them.
func (f *Forwarder) Left() map[Tuple]uint64 {
	left := f.left
	f.left = nil
	return left
}

// Close ends forwarding. The kernel forwards all connections from then on.
func (f *Forwarder) Close() error {
	f.filter.Handle.Close()
	return f.objects.Close()
}

// CleanUp removes the filters from all interfaces of the calling thread's network namespace, and the clsact qdiscs that
// were made for them, unless they are in use.
func CleanUp() error { return tcfilter.CleanUp(filterName) }
