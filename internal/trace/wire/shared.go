package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// Shared has one set of raw sockets for many destinations at a time. The kernel gives each raw socket a copy of
// every ICMP error. If a thousand destinations had a socket each, it would copy every error a thousand times, and
// answers would come too late.
//
// The sockets are open while there are destinations. They receive only TCP segments that answer a packet of no
// connection, SYN+ACKs and resets, so that the traffic of a busy host costs nothing. They do not receive errors that
// quote a destination which a middlebox has translated.
type Shared struct {
	device string
	udp    bool // is heard

	mu   sync.RWMutex
	sets map[bool]*set // by IP version: true is IPv6
	lost atomic.Int64
}

// set is the sockets of an IP version, and the destinations that use them.
type set struct {
	*sockets
	flows map[netip.Addr]*Flow
}

// Flow sends packets to a destination of a Shared, and receives packets that concern it. It is a trace.Network.
type Flow struct {
	shared      *Shared
	set         *set
	destination netip.Addr
	source      netip.Addr
	arrivals    chan trace.Arrival
}

// flowBacklog bounds a destination's arrivals that were not taken yet. It has room for three answers
// to each probe of a trace.
const flowBacklog = 128

// NewShared returns a Shared without destinations. device is the interface to use, or empty. udp makes it receive UDP.
func NewShared(device string, udp bool) *Shared {
	return &Shared{device: device, udp: udp, sets: map[bool]*set{}}
}

// Open adds a destination, until the Flow is closed.
func (s *Shared) Open(destination netip.Addr) (*Flow, error) {
	f, unused, err := s.add(destination)
	if err != nil {
		return nil, errors.Join(err, s.end(unused))
	}
	return f, nil
}

// add adds a destination. If it fails, the caller ends a set that is unused.
func (s *Shared) add(destination netip.Addr) (f *Flow, unused *set, err error) {
	six := !destination.Is4()
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.sets[six]
	if own == nil {
		if own, err = s.start(six); err != nil {
			return nil, nil, err
		}
		s.sets[six] = own
	}
	source, err := sourceTo(destination, s.device)
	if err != nil {
		return nil, s.removeUnused(own), err
	}
	if own.flows[destination] != nil {
		return nil, nil, fmt.Errorf("%v is being traced", destination)
	}
	f = &Flow{shared: s, set: own, destination: destination, source: source, arrivals: make(chan trace.Arrival, flowBacklog)}
	own.flows[destination] = f
	return f, nil, nil
}

func (s *Shared) start(six bool) (*set, error) {
	protocols := []int{icmpOf(six), unix.IPPROTO_TCP}
	if s.udp {
		protocols = append(protocols, unix.IPPROTO_UDP)
	}
	opened, err := openSockets(six, s.device, protocols, func(fd, protocol int) error {
		if protocol != unix.IPPROTO_TCP {
			return nil
		}
		return setFilter(fd, answers(six))
	})
	if err != nil {
		return nil, err
	}
	own := &set{opened, map[netip.Addr]*Flow{}}
	own.read(func(b []byte, from netip.Addr, protocol int) { s.take(own, b, from, protocol) }, func() {})
	return own, nil
}

// take delivers a packet to the flow that it concerns. An ICMP error concerns the destination of the packet that it quotes,
// if that is traced; any other packet concerns its sender.
func (s *Shared) take(heard *set, b []byte, sender netip.Addr, protocol int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, isICMP := heard.flows[sender], protocol == icmpOf(heard.six)
	if f == nil && !isICMP {
		return
	}
	whole := heard.whole(b, sender, netip.IPv6Unspecified(), protocol)
	if isICMP {
		if quoted := heard.flows[quotedTo(whole)]; quoted != nil {
			f = quoted
		}
	}
	if f == nil {
		return
	}
	heard.setReceiver(whole, f.source)
	select {
	case f.arrivals <- trace.Arrival{At: time.Now(), Bytes: whole}:
	default:
		s.lost.Add(1)
	}
}

// quotedTo returns the destination of the packet that an ICMP error quotes, or the zero address.
func quotedTo(b []byte) (destination netip.Addr) {
	p, err := packet.Parse(b)
	if err != nil || p == nil {
		return destination
	}
	quote, err := p.Quote()
	if err != nil {
		return destination
	}
	if quoted, _ := packet.ParseQuote(quote.Bytes); quoted != nil { // even if it is cut
		return quoted.Dst()
	}
	return destination
}

// Lost returns how many packets were lost because this host did not read them in time, up to the last time that there was no
// destination.
func (s *Shared) Lost() int { return int(s.lost.Load()) }

// Source returns the address from which probes come.
func (f *Flow) Source() netip.Addr { return f.source }

// Send sends an IP packet with its header.
func (f *Flow) Send(b []byte) error { return f.set.send(b, f.destination) }

// Arrivals delivers the packets that come back.
func (f *Flow) Arrivals() <-chan trace.Arrival { return f.arrivals }

// Close removes the destination. The last one closes the sockets.
func (f *Flow) Close() error { return f.shared.end(f.shared.remove(f)) }

// remove removes a destination, and returns its set if that is then unused.
func (s *Shared) remove(f *Flow) *set {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.set.flows[f.destination] != f {
		return nil // it is closed
	}
	delete(f.set.flows, f.destination)
	close(f.arrivals) // nothing is sent there without the lock
	return s.removeUnused(f.set)
}

// removeUnused returns a set without destinations for its caller to end, nil if it has some.
func (s *Shared) removeUnused(own *set) *set {
	if len(own.flows) > 0 {
		return nil
	}
	delete(s.sets, own.six)
	return own
}

// end closes the sockets of a set, unless it is nil. It waits for the readers, which take the lock.
func (s *Shared) end(unused *set) error {
	if unused == nil {
		return nil
	}
	for _, in := range unused.in {
		s.lost.Add(in.drops())
	}
	return unused.close()
}

// drops returns the number of packets that found no room in a socket's buffer.
func (in input) drops() (n int64) {
	raw, err := in.file.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		var info [9]uint32 // sock_diag(7): the last is SK_MEMINFO_DROPS
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 {
			n = int64(info[len(info)-1])
		}
	})
	return n
}

// answers accepts segments that have SYN or RST. A raw socket of TCP delivers IPv4's header, but not that of IPv6.
func answers(six bool) []bpf.Instruction {
	const flags, marks = 13, uint32(packet.SYN | packet.RST)
	load := []bpf.Instruction{bpf.LoadMemShift{Off: 0}, bpf.LoadIndirect{Off: flags, Size: 1}} // behind the IP header
	if six {
		load = []bpf.Instruction{bpf.LoadAbsolute{Off: flags, Size: 1}}
	}
	const whole = 1 << 18 // bytes
	return append(load, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: marks, SkipFalse: 1}, bpf.RetConstant{Val: whole}, bpf.RetConstant{Val: 0})
}

// setFilter has the kernel drop what a program does not accept.
func setFilter(fd int, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("filter TCP: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err != nil {
		return fmt.Errorf("filter TCP: %w", err)
	}
	return nil
}
