// Package track follows MPTCP connections through the packets of a capture: which subflows belong to which connection,
// which data each carried or repeated, and how a connection began, fell back and ended. It is pure: it gets packets in
// the order of time, and returns a Record of each connection that ended.
//
// tracker.go handles packets, and ends connections. open.go and orphans.go find a new flow's connection. segment.go
// follows a subflow's TCP, handshake.go and signals.go its MPTCP options. data.go, ranges.go and repeats.go follow the
// data. fallback.go and handover.go judge what happened. record*.go make the Record.
//
// The metrics are those of chapter 3 of Tran's thesis (2019). docs/analyse.md defines them.
package track

import (
	"github.com/detour-collective/dcol/internal/packet"
)

// Side is an end of a connection. The client sent the first SYN.
type Side uint8

// The two sides.
const (
	Client Side = iota
	Server
)

func (s Side) other() Side { return s ^ 1 }

func (s Side) String() string {
	if s == Client {
		return "client"
	}
	return "server"
}

// Packet is a TCP segment of a flow. The flow is a slot, which the caller assigns and may use again once the
// Tracker has released it.
type Packet struct {
	Time int64 // nanoseconds since 1970
	// Clock is a clock that stands still where the capture has gaps, so that no connection ends by a step of the time.
	Clock int64
	Slot  uint32
	// Opens reports that the slot's flow begins with this packet. Number is then used for a new connection, if the flow
	// belongs to no known one.
	Opens  bool
	Number uint32
	// Low reports that the sender's address and port are lower than the receiver's.
	Low bool
	packet.Summary
}

// Options bounds a Tracker.
type Options struct {
	Idle        int64 // nanoseconds without a packet after which a connection has ended
	Connections int   // most at a time; if there are more, or too many subflows, the oldest is ended early
	// Trace is the number of the connection whose packets are kept; 0: none.
	Trace uint32
	// Done gets each connection that ended.
	Done func(*Record)
}

const (
	millisecond = int64(1e6)
	second      = int64(1e9)

	// subflowsEach is the largest average number of subflows of a connection, so that joins do not
	// take memory without bounds.
	subflowsEach = 8

	// linger is the time, in nanoseconds, for which a closed connection is still watched for late packets.
	linger = 2 * second
)
