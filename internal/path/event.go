package path

import (
	"net/netip"
	"time"
)

// Token names one MPTCP connection on this host (RFC 8684, section 3.2).
type Token uint32

// Event is something that happened. Each is a plain value.
type Event interface{ event() }

// ConnEstablished: a connection's first subflow is up and MPTCP is in use.
type ConnEstablished struct {
	Token         Token
	Local, Remote netip.AddrPort
	// ServerSide connections are the other end's to manage: they are ignored.
	ServerSide bool
	// DenyJoinInitial is the peer's C flag (RFC 8684, section 3.1): no further
	// subflow may go to the address of the first one.
	DenyJoinInitial bool
}

// ConnClosed: the connection is gone, with all its subflows.
type ConnClosed struct{ Token Token }

// SubflowRequested: a CreateSubflow was accepted by the kernel, whose SYN is on
// its way from Local.
type SubflowRequested struct {
	Token   Token
	LocalID uint8
	Local   netip.AddrPort
}

// CreateFailed: a CreateSubflow was refused by the kernel at once.
type CreateFailed struct {
	Token   Token
	LocalID uint8
	Err     error
	// Gone: the kernel takes no commands for the connection, as it no longer
	// knows it or manages its paths itself.
	Gone bool
}

// SubflowEstablished: a subflow other than the first is up. Backup is the peer's
// wish.
type SubflowEstablished struct {
	Token         Token
	LocalID       uint8
	Local, Remote netip.AddrPort
	Backup        bool
}

// SubflowClosed: a subflow ended or never came up. Err is nil for an orderly end.
type SubflowClosed struct {
	Token         Token
	LocalID       uint8
	Local, Remote netip.AddrPort
	Err           error
}

// AddrAnnounced: the peer announced another address of its own (ADD_ADDR).
type AddrAnnounced struct {
	Token  Token
	Remote netip.AddrPort
}

// DetourOffered: a detour is there to be used, by every connection it fits.
type DetourOffered struct{ Detour Detour }

// DetourWithdrawn: a detour may not be used for new subflows. Subflows that use
// it stay.
type DetourWithdrawn struct{ ID DetourID }

// WaypointReady: a waypoint can be asked for detours (again) at this address;
// a zero Addr stands for all of its addresses.
type WaypointReady struct {
	Waypoint string
	Addr     netip.Addr
}

// WaypointLost: a waypoint no longer answers at this address. Subflows through
// it stay, but one that stands still while its connection moves on is given up,
// whether or not its detour is still on offer.
type WaypointLost struct {
	Waypoint string
	Addr     netip.Addr
}

// WaypointLeft: a waypoint is not to be used any more at this address. Its
// detours are off offer; a subflow through it is ended as soon as its connection
// has another one. What is offered of it later counts as ever.
type WaypointLeft struct {
	Waypoint string
	Addr     netip.Addr
}

// ServerRefused: a waypoint leads nobody to this server, by no kind of detour,
// and will be asked for that again after some time.
type ServerRefused struct {
	Waypoint string
	Addr     netip.Addr
	Server   netip.AddrPort
	Err      error
	For      time.Duration
}

// KindUnready: a waypoint offers a kind of detour that this host cannot take now,
// and why. A nil Err: it can again, or the waypoint no longer offers it. It only
// gives reasons: what can be taken is what is offered (DetourOffered).
type KindUnready struct {
	Waypoint string
	Kind     Kind
	Err      error
}

// LocalAddrs: the addresses this host has now, from which subflows may start.
type LocalAddrs struct {
	Addrs []netip.Addr
	// Tunnels are those of them that are our tunnels'; others are taken for
	// another network when they come or go. What a detour on offer starts from is
	// known for a tunnel's without being listed here.
	Tunnels []netip.Addr
}

// Measured: what the kernel counts for some subflows. Every subflow should be
// among them about once a second: without that, stalled ones are not found.
type Measured struct {
	Samples []Sample
	// Complete: every subflow that was there is among the samples, which were taken
	// after all events handled so far. One that is missing is gone.
	Complete bool
	// ChecksumErrors counts what arrived changed on all subflows of this host, before the
	// samples were taken; only of Complete.
	ChecksumErrors uint64
	// Received is how far the data of connections has arrived, of those that are sampled
	// closely (Manager.Watched).
	Received []Received
}

// Received is up to where a connection's data has arrived without a gap.
type Received struct {
	Token Token
	UpTo  uint64
}

// SubflowMissing: the kernel was asked for a subflow, and has none with these
// addresses. ChecksumErrors is as in Measured, counted after that.
type SubflowMissing struct {
	Token          Token
	Local, Remote  netip.AddrPort
	ChecksumErrors uint64
}

// Sample is one subflow's counters.
type Sample struct {
	Token         Token
	Local, Remote netip.AddrPort
	// BytesReceived and BytesAcked count payload in each direction since the
	// subflow began.
	BytesReceived, BytesAcked uint64
	// Backoff is how often the retransmission timer has doubled without an answer, and
	// Probes how many keep-alive probes have none.
	Backoff, Probes int
	// MinRTT is the shortest round trip of late.
	MinRTT time.Duration
	// SegsIn counts all segments that came, DataSegsIn those with payload, OutOfOrder
	// those that came after a gap.
	SegsIn, DataSegsIn, OutOfOrder uint64
	// LastData and LastAnswer are how long ago payload, and an acknowledgement, came.
	LastData, LastAnswer time.Duration
	// DataEnd is up to where in the connection's data goes what came last on this
	// subflow, for comparison with Received.UpTo.
	DataEnd uint64
}

// Resync replaces what is believed about connections by what is: after events
// were lost, or when the agent starts beside living connections. No event may be
// handled between asking the kernel and handling its answer, or what began
// meanwhile is forgotten, and what ended meanwhile stays.
type Resync struct{ Conns []LiveConn }

// LiveConn is one connection as the kernel has it. Remote is the peer's address
// of the first subflow.
type LiveConn struct {
	Token         Token
	Local, Remote netip.AddrPort
	Subflows      []LiveSubflow
}

// LiveSubflow is one established subflow as the kernel has it. Backup is this
// host's wish.
type LiveSubflow struct {
	LocalID       uint8
	Local, Remote netip.AddrPort
	Backup        bool
}

// Tick: time has passed; see Manager.Next.
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
func (KindUnready) event()        {}
func (WaypointReady) event()      {}
func (WaypointLost) event()       {}
func (WaypointLeft) event()       {}
func (ServerRefused) event()      {}
func (LocalAddrs) event()         {}
func (Measured) event()           {}
func (SubflowMissing) event()     {}
func (Resync) event()             {}
func (Tick) event()               {}
