package path

import (
	"net/netip"
	"time"
)

// Token names one MPTCP connection on this host (RFC 8684, section 3.2).
type Token uint32

// Event is something that happened. Events are plain values.
type Event interface{ event() }

// ConnEstablished reports that a connection's first subflow is established and uses MPTCP.
type ConnEstablished struct {
	Token         Token
	Local, Remote netip.AddrPort
	// ServerSide is set on connections that this host accepted. They get no detours, because the other end opens the
	// subflows. Only Rule.RefuseJoins and Rule.Announce apply to them.
	ServerSide bool
	// DenyJoinInitial is the peer's C flag (RFC 8684, section 3.1): no further subflow may go to
	// the first one's address.
	DenyJoinInitial bool
	// Cgroup is the absolute path of the cgroup of the program's socket. It is empty if it is not known.
	Cgroup string
}

// ConnClosed reports that the connection and all its subflows are gone.
type ConnClosed struct{ Token Token }

// SubflowRequested reports that the kernel accepted a CreateSubflow and is sending the SYN from
// Local.
type SubflowRequested struct {
	Token   Token
	LocalID uint8
	Local   netip.AddrPort
}

// CreateFailed reports that the kernel rejected a CreateSubflow immediately.
type CreateFailed struct {
	Token   Token
	LocalID uint8
	Err     error
	// Gone is set if the kernel accepts no commands for the connection, because it no longer exists
	// or the kernel manages its paths itself.
	Gone bool
	// HalfClosed is set if an end has closed its direction. Linux opens no more subflows for such a connection.
	HalfClosed bool
}

// SubflowEstablished reports that a subflow other than the first is established. Backup is the
// priority that the peer requested.
type SubflowEstablished struct {
	Token         Token
	LocalID       uint8
	Local, Remote netip.AddrPort
	Backup        bool
}

// SubflowClosed reports that a subflow ended or was never established. Err is nil if it ended in order. Corrupt is
// set if the peer reset it because data arrived there changed (MP_TCPRST with reason 6, middlebox interference: RFC
// 8684, section 3.6).
type SubflowClosed struct {
	Token         Token
	LocalID       uint8
	Local, Remote netip.AddrPort
	Err           error
	Corrupt       bool
}

// AddrAnnounced reports that the peer announced another of its addresses (ADD_ADDR).
type AddrAnnounced struct {
	Token  Token
	Remote netip.AddrPort
}

// DetourOffered makes a detour available to every connection that can use it.
type DetourOffered struct{ Detour Detour }

// DetourWithdrawn reports that a detour may not be used for new subflows. Existing ones stay.
type DetourWithdrawn struct{ ID DetourID }

// DetourMoved reports that the source ports of a detour on offer have changed, so that it takes another path. Each
// subflow over it ends as soon as its connection has another, and a new subflow takes its place.
type DetourMoved struct{ ID DetourID }

// WaypointReady reports that a waypoint can be asked for detours (again) at this address. A zero
// Addr means all of its addresses.
type WaypointReady struct {
	Waypoint string
	Addr     netip.Addr
}

// WaypointLost reports that a waypoint no longer answers at this address. Subflows through it stay, whether or not
// their detours are still on offer. One that makes no progress while its connection does is ended.
type WaypointLost struct {
	Waypoint string
	Addr     netip.Addr
}

// WaypointAddrs lists the addresses of a waypoint's host. The list is empty once the waypoint is not used any more. A
// tunnel to the waypoint reaches all of them, whichever is the tunnel's Endpoint.
type WaypointAddrs struct {
	Waypoint string
	Addrs    []netip.Addr
}

// WaypointLeft reports that a waypoint is not to be used any more at this address. Its detours are
// off offer, and each subflow through it ends as soon as its connection has another. Detours that
// it offers afterwards are used as usual.
type WaypointLeft struct {
	Waypoint string
	Addr     netip.Addr
}

// WaypointMeasured reports the session with a waypoint at one address: its shortest and its latest round trip, and
// the share of its packets that were recently lost. Packets is the number of packets that this share was measured
// over.
type WaypointMeasured struct {
	Waypoint string
	Addr     netip.Addr
	RTT      time.Duration
	Latest   time.Duration
	Loss     float64
	Packets  float64
}

// WaypointLoaded reports a waypoint's own statement that it is loaded until a time. Until then other waypoints are
// preferred. A zero Until means that it is not loaded.
type WaypointLoaded struct {
	Waypoint string
	Addr     netip.Addr
	Until    time.Time
	// Gives is the rate that one more member would get there, in bits a second, as the waypoint states. A waypoint
	// whose capacity a single member uses up states it, too, although it is not loaded. Zero means unknown.
	Gives float64
}

// ServerRefused reports that a waypoint refuses to forward to this server by any kind of detour. It will be asked
// again after the time For.
type ServerRefused struct {
	Waypoint string
	Addr     netip.Addr
	Server   netip.AddrPort
	Err      error
	For      time.Duration
}

// KindUnready reports that a waypoint offers a kind of detour that this host cannot use now, and why. A nil Err ends
// that: the host can use the kind again, or the waypoint no longer offers it. The event only serves explanations.
// DetourOffered decides which detours exist.
type KindUnready struct {
	Waypoint string
	Kind     Kind
	Err      error
}

// LocalAddrs lists the addresses that this host has now and from which subflows may start.
type LocalAddrs struct {
	Addrs []netip.Addr
	// Network lists addresses that identify the network that this host is on. If they change, what was measured before no
	// longer holds. Network is empty if nothing leads to the Internet. If it has always been empty, Addrs without Tunnels
	// identify the network.
	Network []netip.Addr
	// Tunnels lists those of Addrs that belong to our tunnels. Source addresses of detours on offer need not be listed.
	Tunnels []netip.Addr
	// Behind lists the networks behind this host, for which it is the router. Connections may start from their
	// addresses. Detours start only from Addrs.
	Behind []netip.Prefix
	// Metered lists those of Addrs that belong to metered interfaces.
	Metered []netip.Addr
}

// Measured carries the kernel's counters for some subflows. Every subflow should be sampled about once a second.
// Otherwise stalled subflows are not detected.
type Measured struct {
	Samples []Sample
	// Complete is set if the samples include every subflow and were taken after all events handled
	// so far. A subflow missing from a complete sample is gone.
	Complete bool
	// Samples may come in parts. More is set on all but the last. There are no other events between the parts of a complete
	// sample. Complete is set on each of them, and Continues on all but the first.
	Continues, More bool
	// ChecksumErrors counts the checksum failures on all subflows of this host before the samples
	// were taken. It is set only if Complete is.
	ChecksumErrors uint64
	// Progress lists the connections that are sampled closely (Manager.Watched).
	Progress []Progress
}

// Progress holds two positions in a connection's data. This host has received all data up to Received, and the peer has
// received all data up to Acked. SendFull is set if the program waits, or would wait, to write more.
type Progress struct {
	Token           Token
	Received, Acked uint64
	SendFull        bool
}

// SubflowMissing reports that the kernel was asked for a subflow and has none with these addresses. ChecksumErrors is
// as in Measured, read after the kernel's answer.
type SubflowMissing struct {
	Token          Token
	Local, Remote  netip.AddrPort
	ChecksumErrors uint64
}

// SubflowCounted reports the last counters of a subflow that the kernel has freed. It may come before or after the
// subflow's other events, and also for connections that this manager does not know. Without it, what a subflow
// carried after its last sample is not counted.
type SubflowCounted struct {
	Local, Remote netip.AddrPort
	// BytesReceived and BytesAcked are as in Sample.
	BytesReceived, BytesAcked uint64
}

// Sample holds one subflow's counters.
type Sample struct {
	Token         Token
	Local, Remote netip.AddrPort
	// BytesReceived and BytesAcked count payload in each direction since the subflow began.
	BytesReceived, BytesAcked uint64
	// BytesSacked is the payload that the peer has received beyond missing data. BytesAcked does not include it.
	BytesSacked uint64
	// Unacked is the number of segments that were sent and are not acknowledged.
	Unacked int
	// Backoff counts how often the retransmission timer has doubled without an answer, and Probes
	// counts the unanswered keep-alive probes.
	Backoff, Probes int
	// MinRTT is the shortest recent round trip and RTT the smoothed one, both of data that this host sent. ReceiverRTT
	// is the round trip that this host estimates from what it receives. It includes pauses of the sender.
	MinRTT, RTT, ReceiverRTT time.Duration
	// DataSegsOut counts the segments with payload that were sent, retransmissions included. Retransmitted counts the
	// retransmissions, and Needless those of which the peer reported that it already had the data.
	DataSegsOut, Retransmitted, Needless uint32
	// Limited is set if the network, not the program, limits what this host sends.
	Limited bool
	// SegsIn counts all received segments, DataSegsIn those with payload, OutOfOrder those that
	// arrived after a gap.
	SegsIn, DataSegsIn, OutOfOrder uint64
	// Gap is set while segments that arrived wait for what is missing before them on this subflow.
	Gap bool
	// LastData is the time since payload last arrived, LastAnswer the time since an acknowledgement
	// did. LastSent is the time since this host last sent payload.
	LastData, LastAnswer, LastSent time.Duration
	// ECN is set if both ends of the subflow use ECN, Timestamps if they use TCP timestamps.
	ECN, Timestamps bool
	// DataEnd is the position in the connection's data at which the latest data of this subflow ends. It is compared
	// with Progress.Received.
	DataEnd uint64
}

// Resync replaces the known connections with those that exist. It is needed after events were lost, and when the
// agent starts beside existing connections. The caller handles no event between asking the kernel and handling its
// answer. Otherwise connections that began in between are forgotten, and those that ended in between stay.
type Resync struct {
	Conns []LiveConn
	// Accepted lists the connections that this host accepted.
	Accepted []Token
}

// LiveConn is one connection that the kernel has. Remote is the peer's address of the first
// subflow.
type LiveConn struct {
	Token         Token
	Local, Remote netip.AddrPort
	Cgroup        string // as in ConnEstablished
	Subflows      []LiveSubflow
}

// LiveSubflow is one established subflow that the kernel has. Backup is the priority that this host
// requested.
type LiveSubflow struct {
	LocalID       uint8
	Local, Remote netip.AddrPort
	Backup        bool
}

// Tick reports only that time has passed; see Manager.Next.
type Tick struct{}

func (ConnEstablished) event()    {}
func (ConnClosed) event()         {}
func (SubflowRequested) event()   {}
func (CreateFailed) event()       {}
func (SubflowEstablished) event() {}
func (SubflowClosed) event()      {}
func (AddrAnnounced) event()      {}
func (DetourOffered) event()      {}
func (DetourWithdrawn) event()    {}
func (DetourMoved) event()        {}
func (KindUnready) event()        {}
func (WaypointReady) event()      {}
func (WaypointLost) event()       {}
func (WaypointAddrs) event()      {}
func (WaypointLeft) event()       {}
func (WaypointMeasured) event()   {}
func (WaypointLoaded) event()     {}
func (ServerRefused) event()      {}
func (LocalAddrs) event()         {}
func (Measured) event()           {}
func (SubflowMissing) event()     {}
func (SubflowCounted) event()     {}
func (Resync) event()             {}
func (Tick) event()               {}
