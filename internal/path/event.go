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
	// Gone: the kernel no longer knows the connection.
	Gone bool
}

// SubflowEstablished: a subflow other than the first is up.
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
// it stay. Dead says that its waypoint no longer answers, so that a subflow that
// stands still while its connection moves on is given up.
type DetourWithdrawn struct {
	ID   DetourID
	Dead bool
}

// WaypointReady: a waypoint can be asked for detours (again).
type WaypointReady struct{ Waypoint string }

// LocalAddrs: this host's usable addresses, each family's preferred one first.
type LocalAddrs struct{ Addrs []netip.Addr }

// Measured: what the kernel counts for some subflows.
type Measured struct{ Samples []Sample }

// Sample is one subflow's counters.
type Sample struct {
	Token         Token
	Local, Remote netip.AddrPort
	// BytesReceived and BytesAcked count payload in each direction since the
	// subflow began.
	BytesReceived, BytesAcked uint64
	// Backoff is how often the retransmission timer has doubled without an answer.
	Backoff int
}

// Resync replaces what is believed about connections by what is: after events
// were lost, or when the agent starts beside living connections.
type Resync struct{ Conns []LiveConn }

// LiveConn is one connection as the kernel has it. Remote is the peer's address
// of the first subflow.
type LiveConn struct {
	Token         Token
	Local, Remote netip.AddrPort
	Subflows      []LiveSubflow
}

// LiveSubflow is one established subflow as the kernel has it.
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
func (WaypointReady) event()      {}
func (LocalAddrs) event()         {}
func (Measured) event()           {}
func (Resync) event()             {}
func (Tick) event()               {}

// Action is something to do. Each is a plain value; they are to be carried out
// in the order in which they are returned.
type Action interface{ action() }

// CreateSubflow asks the kernel for a subflow. The answer is SubflowRequested
// or CreateFailed.
type CreateSubflow struct {
	Token   Token
	LocalID uint8
	Local   netip.Addr
	Remote  netip.AddrPort
	Backup  bool
}

// DestroySubflow ends one subflow, or gives up one whose SYN is unanswered.
type DestroySubflow struct {
	Token         Token
	Local, Remote netip.AddrPort
}

// RemoveAddr ends the subflows with this address id and tells the peer to
// (REMOVE_ADDR), which reaches it even if they are dead.
type RemoveAddr struct {
	Token   Token
	LocalID uint8
}

// SetBackup makes a subflow a backup or a full one, on both sides (MP_PRIO).
type SetBackup struct {
	Token         Token
	Local, Remote netip.AddrPort
	Backup        bool
}

// RequestDetours asks the waypoints for detours to a server. Whoever carries it
// out knows which were asked already.
type RequestDetours struct{ Server netip.AddrPort }

// Measure asks for a sample of one subflow, soon. The answer is Measured.
type Measure struct {
	Token         Token
	Local, Remote netip.AddrPort
}

func (CreateSubflow) action()  {}
func (DestroySubflow) action() {}
func (RemoveAddr) action()     {}
func (SetBackup) action()      {}
func (RequestDetours) action() {}
func (Measure) action()        {}

// backoff is how long to wait after the nth failure in a row (n from 1):
// doubling from one second to a minute.
func backoff(n int) time.Duration {
	if n > 6 {
		return time.Minute
	}
	return time.Second << (n - 1)
}
