package mptcp

import (
	"context"
	"net/netip"
)

// Kernel is the MPTCP of one network namespace, as the agent uses it.
//
// The commands may be called by one goroutine while another is in Listen and
// others look at connections; every call returns in the time of a system call.
type Kernel interface {
	// Listen delivers every event since the Kernel was opened, in the order of
	// the kernel, until ctx ends; it then returns nil. It blocks while events is
	// full. Where the kernel had to drop events there is one of kind EventsLost:
	// the caller then asks for Connections. Listen is called once.
	Listen(ctx context.Context, events chan<- Event) error

	// CreateSubflow starts a join and does not wait for its handshake: the
	// outcome is an event, SubflowEstablished or SubflowClosed.
	CreateSubflow(NewSubflow) error

	// DestroySubflow closes one subflow, also one that is still connecting.
	// The last one must not be destroyed: the program would wait for ever.
	DestroySubflow(token uint32, local, remote netip.AddrPort) error

	// SetBackup makes the subflow a backup, or no longer one, for both ends.
	SetBackup(token uint32, local, remote netip.AddrPort, backup bool) error

	// RemoveAddress tells the peer that a local address is gone (REMOVE_ADDR)
	// and closes its subflows on both sides, except those still connecting. It
	// fails with ErrNoAddress when the kernel has forgotten the id, as it does
	// when any subflow of the address is destroyed or cannot be created;
	// Announce, or another subflow, makes it known again.
	RemoveAddress(token uint32, localID uint8) error

	// Announce tells the peer of a local address it may connect to (ADD_ADDR).
	// Port 0 stands for the port the peer already uses.
	Announce(token uint32, local netip.AddrPort, localID uint8) error

	// Connections is all live MPTCP connections with their subflows: those for
	// which a Created event was sent and no Closed, and those that fell back to
	// plain TCP, for which there may have been no event.
	Connections() ([]Connection, error)

	// Subflows calls yield for each live subflow until it returns false. The
	// Subflow is valid only during the call.
	Subflows(yield func(*Subflow) bool) error

	// ChecksumErrors counts how often data arrived on a subflow that did not match
	// MPTCP's checksum (DataCsumErr), in this namespace since it was made. The kernel
	// resets such a subflow at once and sends no event.
	ChecksumErrors() (uint64, error)

	// Open reports whether neither end of a connection is closed yet. Linux adds no subflow to one of
	// which an end is.
	Open(token uint32) (bool, error)

	// DataReceived is up to where the data of a connection has arrived without a gap
	// (its rcv_nxt), for comparison with Metrics.DataEnd and with itself. An error that
	// wraps ErrNoConnection means that there is no such connection.
	DataReceived(token uint32) (uint64, error)

	// Subflow looks up one subflow by its addresses. An error that wraps
	// ErrNoSubflow means that there is none.
	Subflow(local, remote netip.AddrPort) (Subflow, error)
}

// NewSubflow is a subflow to create.
type NewSubflow struct {
	Token   uint32         // of the connection
	Local   netip.AddrPort // port 0: the kernel chooses
	LocalID uint8          // the address id of Local in this connection
	Remote  netip.AddrPort
	Backup  bool // carry data only when no other subflow can
	IfIndex int  // interface to bind to; 0: as routed; see JoinFlags
}
