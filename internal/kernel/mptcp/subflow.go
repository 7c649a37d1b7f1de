package mptcp

import (
	"fmt"
	"net/netip"
	"time"
)

// Subflow is one TCP connection of an MPTCP connection.
type Subflow struct {
	Token       uint32 // this host's token of the connection
	RemoteToken uint32 // the peer's token; known only for joins that this host opened
	Local       netip.AddrPort
	Remote      netip.AddrPort
	LocalID     uint8
	RemoteID    uint8
	IfIndex     int // interface it is bound to; 0: none
	State       TCPState
	Cgroup      uint64 // id of the program's cgroup (inode of its folder); 0: unknown

	Initial          bool // the first subflow (MP_CAPABLE); the others joined
	ServerSide       bool // the peer opened it
	BackupLocal      bool // this host asked for it to be a backup
	BackupRemote     bool // the peer asked for it to be a backup
	FullyEstablished bool // MPTCP options need no more confirmation

	Metrics Metrics
}

// Metrics contains TCP's metrics of a subflow (struct tcp_info). Fields that the running kernel lacks are zero.
type Metrics struct {
	RTT    time.Duration // smoothed
	RTTVar time.Duration // mean deviation
	MinRTT time.Duration // least in a recent period
	// ReceiverRTT is estimated from received data. It includes the sender's pauses. Without Timestamps it is the time in
	// which a receive window fills, which may be much longer.
	ReceiverRTT time.Duration
	RTO         time.Duration // retransmission timeout

	SndCwnd     uint32 // congestion window, segments
	SndSSThresh uint32 // slow-start threshold, segments
	SndMSS      uint32 // bytes
	PathMTU     uint32 // bytes
	SndWnd      uint32 // window the peer offers, bytes
	Unacked     uint32 // segments in flight
	Lost        uint32 // segments that count as lost now
	Sacked      uint32 // segments of those in flight that the peer has, although it misses some before them (RFC 2018)
	NotSent     uint32 // bytes queued and not yet sent
	Backoff     uint8  // present number of doublings of RTO
	Retransmits uint8  // present number of timeouts in a row without an answer

	TotalRetrans  uint32 // segments, ever
	NeedlessSent  uint32 // segments that the peer reported as received twice (RFC 2883)
	BytesSent     uint64 // with retransmissions
	BytesRetrans  uint64
	BytesAcked    uint64
	BytesReceived uint64 // in order, delivered to MPTCP
	SegsOut       uint32 // with pure acknowledgements
	SegsIn        uint32
	DataSegsOut   uint32
	DataSegsIn    uint32
	OutOfOrder    uint32 // segments that came after a gap
	Gap           bool   // such segments wait for missing ones before them now
	Probes        uint8  // present number of keep-alive probes without an answer
	ECN           bool   // both ends do ECN (RFC 3168)
	Timestamps    bool   // both ends use TCP timestamps (RFC 7323)

	DeliveryRate uint64        // bytes per second, of the last sample
	PacingRate   uint64        // bytes per second; all ones: no limit
	BusyTime     time.Duration // with data in flight or to send
	RwndLimited  time.Duration // part of BusyTime in which the peer's window held data back

	// Times since an event, to the millisecond, or since the socket was made if there was none.
	LastDataSent time.Duration
	LastDataRecv time.Duration
	LastAckRecv  time.Duration

	// DataEnd is the end of the last mapping that arrived on this subflow, as a position in the connection's data (see
	// Kernel.Progress). It is 0 if none arrived.
	DataEnd uint64
}

const (
	// sentLately is the time since this host last sent data within which the round trip of that data is a present one.
	sentLately = time.Second
	// flows is the longest time since data last arrived, at least, for which data counts as flowing.
	flows = 100 * time.Millisecond
)

// BytesSacked estimates the payload that the peer has received although it misses some before it. The kernel counts only
// segments, so their mean size is used. BytesSent also includes what this host's own queue or firewall dropped, so no segment
// counts for more than SndMSS.
func (m *Metrics) BytesSacked() uint64 {
	sent, known := m.BytesSent-min(m.BytesSent, m.BytesRetrans), m.BytesAcked
	if m.Sacked == 0 || m.Unacked == 0 || sent <= known {
		return 0
	}
	inFlight := min(sent-known, uint64(m.Unacked)*uint64(m.SndMSS))
	return inFlight * uint64(min(m.Sacked, m.Unacked)) / uint64(m.Unacked)
}

// LatestRTT returns the subflow's latest round trip, and how long ago it was measured. RTT stays as it is while this host
// only receives. Meanwhile arriving data tells how long the packets now take, queues included.
func (m *Metrics) LatestRTT() (rtt, age time.Duration) {
	if m.Timestamps && m.ReceiverRTT > 0 && m.LastDataSent > max(sentLately, m.LastDataRecv) && m.LastDataRecv <= max(m.ReceiverRTT, flows) {
		return m.ReceiverRTT, m.LastDataRecv
	}
	return m.RTT, m.LastDataSent
}

// TCPState is a TCP state (RFC 9293), with the kernel's number.
type TCPState uint8

const (
	StateEstablished TCPState = iota + 1
	StateSynSent
	StateSynRecv
	StateFinWait1
	StateFinWait2
	StateTimeWait
	StateClose
	StateCloseWait
	StateLastAck
	StateListen
	StateClosing
	StateNewSynRecv
)

var stateNames = [...]string{
	StateEstablished: "ESTABLISHED", StateSynSent: "SYN_SENT", StateSynRecv: "SYN_RECV",
	StateFinWait1: "FIN_WAIT1", StateFinWait2: "FIN_WAIT2", StateTimeWait: "TIME_WAIT",
	StateClose: "CLOSE", StateCloseWait: "CLOSE_WAIT", StateLastAck: "LAST_ACK",
	StateListen: "LISTEN", StateClosing: "CLOSING", StateNewSynRecv: "NEW_SYN_RECV",
}

// open reports whether a subflow in this state is open or connecting.
func (s TCPState) open() bool {
	switch s {
	case StateEstablished, StateSynSent, StateSynRecv, StateCloseWait:
		return true
	}
	return false
}

func (s TCPState) String() string {
	if int(s) < len(stateNames) && stateNames[s] != "" {
		return stateNames[s]
	}
	return fmt.Sprintf("STATE_%d", uint8(s))
}
