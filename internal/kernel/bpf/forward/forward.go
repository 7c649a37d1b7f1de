// Package forward takes established TCP connections past netfilter: a program at
// tc's ingress does to their packets what connection tracking and address
// translation would, and sends them on to the next hop, at about the price of
// plain forwarding. It is told which connections, and how their packets change; it
// knows nothing of why. Only internal/waypoint may import it.
//
// The program takes what is simple: whole packets to this host, of IPv4 without
// options or IPv6 without extension headers, without a VLAN tag, with a TTL to spend, a
// route and a neighbour, no larger than the way out bears. Everything else goes up the
// stack as it came: netfilter must know the connection as well, and be content with
// packets it has not seen the predecessors of.
//
// Such a connection tracker believes every FIN and RST, so that a stranger who does not
// see the connection could end it. The program therefore notes the sequence numbers of
// both directions: while a connection is only watched, and later while it is forwarded. Of a
// connection that is forwarded
//
//   - a FIN or RST whose number is the one that the receiver waits for goes up, and so does all
//     of the connection that comes after it;
//   - any other FIN or RST is forwarded like data, so that the connection's end can judge it, or
//     is dropped if it cannot be forwarded;
//   - an answer to a SYN is forwarded like data.
//
// A SYN is dropped, also while the connection is watched: after one, Linux's own tracker believes
// any RST that acknowledges it, whatever its number.
//
// CAP_BPF and CAP_NET_ADMIN are enough, but for what a process that was killed has counted
// ([Forwarder.Left]), for which the kernel wants CAP_SYS_ADMIN. A process that stops removes its
// connections and hands their counts on itself.
package forward

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type change -type tuple4 -type way4 -type tuple6 -type way6 -tags linux forward forward.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// MaxFlows is the number of connections that fit, by family.
const MaxFlows = 65536

// ErrFull is returned if there is no room for another connection. The kernel then forwards it.
var ErrFull = errors.New("as many connections are forwarded by eBPF as there is room for")

// Tuple is the source and the destination of packets.
type Tuple struct{ Src, Dst netip.AddrPort }

func (t Tuple) reversed() Tuple { return Tuple{Src: t.Dst, Dst: t.Src} }

// Flow is a connection, as connection tracking has it: the packets of either
// direction as they come in. Those of Origin leave as Reply turned round, and those
// of Reply as Origin turned round.
type Flow struct{ Origin, Reply Tuple }

// Passed is the bytes of IP packets of a connection that were forwarded here.
type Passed struct{ Origin, Reply uint64 }

// Numbers are the sequence numbers of one direction of a connection.
type Numbers struct {
	// Begun is how often they were begun anew, because a packet did not fit them. It is 0 if
	// there was no packet yet, and does not change while the connection is forwarded.
	Begun uint32
	Next  uint32 // the number after the last data
	Ack   uint32 // what was acknowledged last
}

// Seen are the numbers of both directions.
type Seen struct{ Origin, Reply Numbers }

// State is the state of a connection at a check.
type State struct {
	Passed
	Seen Seen
	// Ended: a FIN or RST has come that the receiver waits for, and the kernel has all that
	// came with it and after it.
	Ended bool
}

// UnavailableError says why this host does not take the program, and what would
// mend it.
type UnavailableError struct {
	Mend string
	Err  error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("connections cannot be forwarded by eBPF here: %v (%s)", e.Err, e.Mend)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

const mendKernel = "needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"

func unavailable(err error) error {
	return &UnavailableError{Mend: tcfilter.Mend(err, mendKernel), Err: err}
}
