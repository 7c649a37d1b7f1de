package path

import (
	"net/netip"
	"time"
)

// Action is something for the caller to do. Actions are plain values, to be carried out in the
// order in which Handle returns them.
type Action interface{ action() }

type actions []Action

func (as *actions) do(a Action) { *as = append(*as, a) }

// CreateSubflow requests a subflow from the kernel. The answer is SubflowRequested or CreateFailed.
// If Local is zero, the kernel picks the source address by routing. Two subflows from one address
// have different ids, which Linux accepts only with local ports chosen by the caller.
type CreateSubflow struct {
	Token   Token
	LocalID uint8
	Local   netip.Addr
	Remote  netip.AddrPort
	Backup  bool
	// Direct subflows have no Kind and no Waypoint.
	Direct   bool
	Kind     Kind
	Waypoint string
	// Server is the final destination. An in-band subflow carries it in its SYN.
	Server netip.AddrPort
}

// DestroySubflow ends one subflow, or aborts one whose SYN is unanswered. If the subflow no longer exists, that is
// not an error.
type DestroySubflow struct {
	Token         Token
	Local, Remote netip.AddrPort
	// IfOpen is set if the path may work again. Then the caller ends the subflow only if both ends of the connection are
	// open, because Linux opens no other subflow for a half-closed connection.
	IfOpen bool
}

// RemoveAddr ends the subflows with this address id and sends REMOVE_ADDR to the peer, which works
// even if the subflows are dead. If Local is set, the id was used from that address and the peer
// must always be notified. If Local is zero, the action only releases the id, and an unknown id is
// not an error.
type RemoveAddr struct {
	Token   Token
	LocalID uint8
	Local   netip.AddrPort
}

// SetBackup changes a subflow to backup or full priority on both sides (MP_PRIO).
type SetBackup struct {
	Token         Token
	Local, Remote netip.AddrPort
	Backup        bool
}

// RequestDetours asks the waypoints for detours to a server. The caller keeps track of which
// waypoints it has asked.
type RequestDetours struct{ Server netip.AddrPort }

// Measure requests a sample of one subflow soon. The answer is Measured, or SubflowMissing if the
// kernel has no such subflow.
type Measure struct {
	Token         Token
	Local, Remote netip.AddrPort
}

// Watch requests close samples of one connection at once, before the next round (Manager.Watched). The answer is Measured
// with Progress, unless the connection has ended. The caller also reports the sessions (WaypointMeasured) before, and
// measures them again.
type Watch struct {
	Token    Token
	Subflows []Ends
}

// LookUp asks whether a connection still exists. The answer is ConnClosed if it does not.
type LookUp struct{ Token Token }

// Probe turns keep-alive probes on a subflow on or off. While they are on, the kernel sends a probe for each second
// in which nothing was received. Samples report how many probes are unanswered.
type Probe struct {
	Token         Token
	Local, Remote netip.AddrPort
	On            bool
	// Backup is the subflow's current priority.
	Backup bool
}

// Blame reports to the operator that a waypoint's detours are suspended. Detours of this kind, or of all kinds, are
// not used towards Server until the given time. A zero Server means all servers. Err is the harm that was seen, and
// Fix advises the operator what to do.
type Blame struct {
	Waypoint string
	Kind     Kind
	AllKinds bool
	Server   netip.AddrPort
	Err      error
	Fix      string
	Until    time.Time
}

// ReadAddrs asks for this host's addresses, because a subflow starts from an address that the last LocalAddrs did not
// list. The answer is LocalAddrs, at once.
type ReadAddrs struct{}

func (CreateSubflow) action()  {}
func (DestroySubflow) action() {}
func (RemoveAddr) action()     {}
func (SetBackup) action()      {}
func (RequestDetours) action() {}
func (Measure) action()        {}
func (Watch) action()          {}
func (LookUp) action()         {}
func (Probe) action()          {}
func (Blame) action()          {}
func (ReadAddrs) action()      {}
