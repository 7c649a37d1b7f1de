package track

import (
	"github.com/detour-collective/dcol/internal/packet"
)

// connection is an MPTCP connection that is alive.
type connection struct {
	number   uint32
	subflows []*subflow
	streams  [2]stream // by the side that sends

	version    uint8
	versionSet bool
	key        [2]packet.Key
	keyKnown   [2]bool
	tokens     []uint32 // that lead to this connection
	// clientToken is the client's token, if a join of the server has shown it without the key.
	clientToken *uint32
	midway      bool     // it began before the capture
	joining     bool     // it has only joins with an unknown token, and no data so far
	places      [2]place // among the orphans
	placed      [2]bool
	checksums   bool

	first, last int64 // packets
	active      int64 // of the activity clock
	idleTime    int64 // sum of gaps of a second and more
	longestGap  int64
	packets     uint64

	fallback  fallback
	fastClose bool
	closing   bool
	reopened  bool // while it was closing, a packet showed that it lives
	finished  bool
	queued    int // its place in the queue of quiet connections
	idle      bool
	evicted   bool

	signals []*signal
	repeats repeats
	anomaly anomalies
	trace   *Trace
}

// anomalies counts irregularities of a connection.
type anomalies struct {
	duplicates, wrongHMAC, unknownToken, badOption, cut, unmapped, lostByCapture, conflict uint64
}

func (a *anomalies) add(b anomalies) {
	a.duplicates += b.duplicates
	a.wrongHMAC += b.wrongHMAC
	a.unknownToken += b.unknownToken
	a.badOption += b.badOption
	a.cut += b.cut
	a.unmapped += b.unmapped
	a.lostByCapture += b.lostByCapture
	a.conflict += b.conflict
}

// subflow is a TCP connection of an MPTCP connection.
type subflow struct {
	c         *connection
	index     int
	slot      uint32
	clientLow bool // the client's address and port are the lower ones
	address   [2][16]byte
	port      [2]uint16
	half      [2]half

	opener     Side // of the connection, that sent this subflow's SYN
	join       bool
	addressID  [2]uint8
	idKnown    [2]bool
	backup     bool
	nonce      [2]uint32
	verified   [2]verdict // HMACs, by their sender
	syn        int64      // the first
	synAck     int64
	ack        int64
	synRepeats bool // so the handshake's round trip is not known
	up         bool // established
	refused    bool
	end        ending
	endTime    int64
	endBy      Side
	reason     int // of MP_TCPRST; -1: none
	removed    int64
	failed     bool // MP_FAIL
	last       int64
	nextOther  int64 // when another subflow carried new data after this one's last
	otherIndex int
}

type verdict uint8

const (
	unchecked verdict = iota
	right
	wrong
)

type ending uint8

const (
	open ending = iota
	finished
	reset
)

func (e ending) String() string { return [...]string{"", "fin", "reset"}[e] }

// half is one direction of a subflow.
type half struct {
	isn      uint32
	isnKnown bool // exactly: from a SYN, or from two mappings that agree
	isnGuess bool
	started  bool
	next     uint32 // behind the highest byte that was sent
	holes    holes
	window   uint32
	scale    uint8
	acked    uint32 // the highest acknowledgement from the other side
	ackKnown bool
	ackTime  int64

	packets, bytes             uint64
	retransmitted, repeated    uint64 // bytes, segments
	disordered                 uint64 // segments
	newBytes, reinjected       uint64 // at the data level: first seen here; seen on another subflow before
	unmapped                   uint64 // bytes without mapping
	firstData, lastNew, lastRe int64
	last                       int64
	mptcp                      uint64 // packets with MPTCP options
	fin                        bool
	found                      bool  // data came that was acknowledged before, and counted as not captured
	lost                       int64 // when a loss was last seen

	mapping, before mapping
	rtt             Spread
	rttOverTime     *overTime // nil: there are no samples
	pending         [8]sample
	pendingAt       uint8
	pendingLen      uint8
	prints          [4]fingerprint
	printAt         uint8
}

type sample struct {
	end uint32
	at  int64
}

// fingerprint identifies a packet, to distinguish a duplicate of the packet from data that was sent again.
type fingerprint struct {
	sum uint64
	at  int64
}

// Spread sums up samples.
type Spread struct {
	Count    uint64
	Min, Max int64 // nanoseconds
	Sum      float64
}

func (s *Spread) add(v int64) {
	if s.Count == 0 || v < s.Min {
		s.Min = v
	}
	s.Max = max(s.Max, v)
	s.Sum += float64(v)
	s.Count++
}

// Mean returns the average, in nanoseconds.
func (s Spread) Mean() float64 {
	if s.Count == 0 {
		return 0
	}
	return s.Sum / float64(s.Count)
}

// side returns which side of the connection sent a packet of this subflow.
func (s *subflow) side(low bool) Side {
	if low == s.clientLow {
		return Client
	}
	return Server
}
