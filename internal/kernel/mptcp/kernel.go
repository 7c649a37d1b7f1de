package mptcp

import (
	"context"
	"net/netip"
)

// Kernel is the interface between the agent and the MPTCP of one network namespace.
//
// One goroutine may call commands while another is in Listen and others list connections. Each call except Listen takes
// only the time of a system call.
type Kernel interface {
	// Listen sends every event since the Kernel was opened, in the kernel's order, until ctx ends; then it returns
	// nil. It blocks while events is full. If the kernel dropped events, Listen sends one of kind EventsLost; the
	// caller should then call Connections. Listen must be called only once.
	Listen(ctx context.Context, events chan<- Event) error

	// CreateSubflow starts a join without waiting for its handshake. The outcome is an event, SubflowEstablished or
	// SubflowClosed.
	CreateSubflow(NewSubflow) error

	// DestroySubflow closes one subflow, even if it is still connecting. Do not destroy the last one of a connection:
	// its program would wait for ever.
	DestroySubflow(token uint32, local, remote netip.AddrPort) error

	// SetBackup makes the subflow a backup for both ends, or ends that.
	SetBackup(token uint32, local, remote netip.AddrPort, backup bool) error

	// RemoveAddress tells the peer that a local address is gone (REMOVE_ADDR) and closes its subflows on both sides,
	// except those still connecting. It fails with ErrNoAddress if the kernel has forgotten the id. The kernel forgets
	// it when any subflow of the address is destroyed or cannot be created. Announce, or another subflow, restores it.
	RemoveAddress(token uint32, localID uint8) error

	// Announce tells the peer of a local address to which it may connect (ADD_ADDR). Port 0 stands for the port that
	// the peer already uses.
	Announce(token uint32, local netip.AddrPort, localID uint8) error

	// Connections returns all live MPTCP connections with their subflows: those for which Created was sent and Closed
	// was not, and those that fell back to plain TCP, which may have had no event.
	Connections() ([]Connection, error)

	// Fallbacks calls yield for each live connection that fell back to plain TCP, until yield returns false. The
	// Connection has only its addresses and its state, and is valid only during the call. Fallbacks costs a fraction of
	// Connections. As with Subflows, yield must not call the Kernel.
	Fallbacks(yield func(*Connection) bool) error

	// Subflows calls yield for each live subflow until yield returns false. The Subflow is valid only during the call.
	Subflows(yield func(*Subflow) bool) error

	// ChecksumErrors returns the number of checksum failures of MPTCP data (DataCsumErr) in this namespace since it was
	// made. The kernel resets such a subflow at once, without an event.
	ChecksumErrors() (uint64, error)

	// Open reports whether both ends of a connection are still open. If one is closed, Linux adds no subflows.
	Open(token uint32) (bool, error)

	// Progress returns how far a connection's data has come. The error wraps ErrNoConnection if there is no such
	// connection.
	Progress(token uint32) (Progress, error)

	// Subflow returns one subflow by its addresses. The error wraps ErrNoSubflow if there is none.
	Subflow(local, remote netip.AddrPort) (Subflow, error)
}

// Progress holds positions in a connection's data, one for each direction.
type Progress struct {
	// Received is the end of the data that has arrived without a gap (rcv_nxt). It is comparable with Metrics.DataEnd.
	Received uint64
	// Acked is the end of the data that the peer has received without a gap (snd_una).
	Acked uint64
	// SendFull is set if the send buffer is so full that Linux does not wake a program that waits to write more.
	SendFull bool
}

// NewSubflow describes a subflow to create.
type NewSubflow struct {
	Token   uint32         // of the connection
	Local   netip.AddrPort // port 0: the kernel chooses
	LocalID uint8          // the address id of Local in this connection
	Remote  netip.AddrPort
	Backup  bool // carry data only when no other subflow can
	IfIndex int  // interface to bind to; 0: as routed; see JoinFlags
}
