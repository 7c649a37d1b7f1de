// Package forward forwards established TCP connections without netfilter. An eBPF program at tc's ingress rewrites the
// addresses and ports of their packets, as connection tracking would, and sends them to the next hop, for about the
// cost of plain forwarding. The caller names the connections and how their packets change. The package does not know
// why they are forwarded. Only internal/waypoint may import it.
//
// The program forwards only simple packets: whole ones that are sent to this host, of IPv4 without options or of IPv6
// without extension headers, without a VLAN tag, with a TTL above one, with a route and a known neighbour, and no
// larger than the outgoing link's MTU. All other packets go up to the kernel unchanged. So netfilter must know the
// connection too, and must accept packets although it did not see those before them (netstate.Conntrack.Relax).
//
// A tracker that accepts such packets believes every FIN and RST. A stranger who does not see the connection could end
// it. The program therefore notes the sequence numbers of both directions, from when a connection is watched. While a
// connection is forwarded:
//
//   - A FIN or RST with the sequence number that the receiver expects goes up to the kernel, and so do all later
//     packets of the connection.
//   - Any other FIN or RST is forwarded like data, so that the connection's end can judge it. It is dropped if it
//     cannot be forwarded.
//   - An answer to a SYN is forwarded like data.
//
// A SYN is dropped, also while the connection is watched: after a SYN, Linux's own tracker believes any RST that
// acknowledges it, whatever its number.
//
// CAP_BPF and CAP_NET_ADMIN are enough, except for [Forwarder.Left], which needs CAP_SYS_ADMIN to read the counts of a
// process that was killed. A process that stops regularly removes its connections and passes their counts on itself.
package forward

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type change -type tuple4 -type way4 -type tuple6 -type way6 -tags linux forward forward.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// MaxFlows is the largest number of connections of each address family.
const MaxFlows = 65536

// ErrFull is returned if there is no room for another connection. The kernel then forwards it.
var ErrFull = errors.New("as many connections are forwarded by eBPF as there is room for")

// Tuple is the source and the destination of packets.
type Tuple struct{ Src, Dst netip.AddrPort }

func (t Tuple) reversed() Tuple { return Tuple{Src: t.Dst, Dst: t.Src} }

// Flow is a connection in the terms of connection tracking: the addresses of the packets that come in, by direction.
// Packets of Origin leave with the addresses of Reply reversed, and packets of Reply with those of Origin reversed.
type Flow struct{ Origin, Reply Tuple }

// Passed counts the bytes of a connection's IP packets that the program forwarded.
type Passed struct{ Origin, Reply uint64 }

// Numbers are the sequence numbers of one direction of a connection.
type Numbers struct {
	// Begun counts the times that the numbers were started anew because a packet did not fit them. It is 0 before the
	// first packet, and does not change while the connection is forwarded.
	Begun uint32
	Next  uint32 // sequence number after the last data
	Ack   uint32 // last acknowledgement number
}

// Seen has the sequence numbers of both directions.
type Seen struct{ Origin, Reply Numbers }

// State is the state of a connection at a check.
type State struct {
	Passed
	Seen Seen
	// Ended reports that a FIN or RST with the expected sequence number came. The kernel got it, and all packets since.
	Ended bool
}

// UnavailableError reports why this host cannot load the program, and how to fix it.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("connections cannot be forwarded by eBPF here: %v (%s)", e.Err, e.Fix)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

const fixKernel = "needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"

func unavailable(err error) error {
	return &UnavailableError{Fix: tcfilter.FixFor(err, fixKernel), Err: err}
}
