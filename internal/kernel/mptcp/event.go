package mptcp

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// EventKind is the kind of an event. Values below 256 are the kernel's (enum mptcp_event_type).
type EventKind uint16

const (
	Created            EventKind = 1  // a connection: first handshake done on this side
	Established        EventKind = 2  // a connection: data has been acknowledged, subflows can be created
	Closed             EventKind = 3  // a program closed a connection; no SubflowClosed comes before it
	Announced          EventKind = 6  // the peer announced an address
	Removed            EventKind = 7  // the peer withdrew an address
	SubflowEstablished EventKind = 10 // an additional subflow is up
	SubflowClosed      EventKind = 11 // a subflow is gone
	SubflowPriority    EventKind = 13 // the peer changed a subflow's priority
	ListenerCreated    EventKind = 15 // the kernel's path manager listens for joins
	ListenerClosed     EventKind = 16

	// EventsLost is not the kernel's: this package sends it if the kernel dropped events that were not read in time.
	// Connections shows what was missed.
	EventsLost EventKind = 256
)

var kindNames = map[EventKind]string{
	Created: "CREATED", Established: "ESTABLISHED", Closed: "CLOSED",
	Announced: "ANNOUNCED", Removed: "REMOVED",
	SubflowEstablished: "SUB_ESTABLISHED", SubflowClosed: "SUB_CLOSED", SubflowPriority: "SUB_PRIORITY",
	ListenerCreated: "LISTENER_CREATED", ListenerClosed: "LISTENER_CLOSED",
	EventsLost: "EVENTS_LOST",
}

// String returns the kernel's name of the kind.
func (k EventKind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("EVENT_%d", uint16(k))
}

// Event is one event of the kernel's path-manager interface. Kind determines which fields are set. Fields that the
// kernel omits are zero.
type Event struct {
	Kind  EventKind
	Token uint32 // this host's token of the connection

	Local netip.AddrPort
	// Remote is the peer's address, or with Announced the announced one. With SubflowClosed its port is 0 if the
	// subflow was destroyed before it was established. Then Local identifies the subflow, because two subflows of a
	// connection have the same Local only if a command asked for that.
	Remote   netip.AddrPort
	LocalID  uint8
	RemoteID uint8

	ServerSide      bool // Created, Established: this host accepted the connection
	DenyJoinInitial bool // the peer forbids joins to its initial address (flag C of MP_CAPABLE)
	Backup          bool // the peer asked for a backup; this host's own request does not set it

	Err         syscall.Errno // SubflowClosed: the reason, if the kernel knows it
	ResetReason ResetReason   // SubflowClosed: the peer's reason for a reset, if it sent one
	ResetFlags  uint32
	IfIndex     int // interface the subflow is bound to
	Timeout     time.Duration
}

// String returns the event as a line for logs and golden files.
func (e Event) String() string {
	var b strings.Builder
	b.WriteString(e.Kind.String())
	if e.Kind == EventsLost {
		return b.String()
	}
	fmt.Fprintf(&b, " token=%08x", e.Token)
	if e.Local.IsValid() {
		fmt.Fprintf(&b, " local=%v", e.Local)
	}
	if e.Remote.IsValid() {
		fmt.Fprintf(&b, " remote=%v", e.Remote)
	}
	switch e.Kind {
	case SubflowEstablished, SubflowClosed, SubflowPriority:
		fmt.Fprintf(&b, " ids=%d/%d", e.LocalID, e.RemoteID)
	case Announced, Removed:
		fmt.Fprintf(&b, " id=%d", e.RemoteID)
	}
	for _, f := range []struct {
		on   bool
		name string
	}{{e.ServerSide, "server-side"}, {e.DenyJoinInitial, "deny-join-initial"}, {e.Backup, "backup"}} {
		if f.on {
			b.WriteString(" " + f.name)
		}
	}
	if e.Err != 0 {
		fmt.Fprintf(&b, " err=%q", e.Err.Error())
	}
	if e.ResetReason != 0 || e.ResetFlags != 0 {
		fmt.Fprintf(&b, " reset=%d/%#x", e.ResetReason, e.ResetFlags)
	}
	if e.IfIndex != 0 {
		fmt.Fprintf(&b, " ifindex=%d", e.IfIndex)
	}
	return b.String()
}

// ResetReason is the reason code of MP_TCPRST (RFC 8684, section 3.6).
type ResetReason uint32

// ResetMiddlebox means that data or options arrived changed. Linux sends it after a failed checksum.
const ResetMiddlebox ResetReason = 6
