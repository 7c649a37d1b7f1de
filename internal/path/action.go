package path

import (
	"net/netip"
	"time"
)

// Action is something to do. Each is a plain value; they are to be carried out
// in the order in which they are returned.
type Action interface{ action() }

// CreateSubflow asks the kernel for a subflow. The answer is SubflowRequested
// or CreateFailed. A zero Local is the address from which Remote is routed. Two
// subflows from one address have different ids, which Linux accepts only with
// local ports that the caller chose.
type CreateSubflow struct {
	Token   Token
	LocalID uint8
	Local   netip.Addr
	Remote  netip.AddrPort
	Backup  bool
	// Direct ones have no Kind and no Waypoint.
	Direct   bool
	Kind     Kind
	Waypoint string
	// Server is where the subflow leads to in the end, which an in-band one's SYN
	// has to say.
	Server netip.AddrPort
}

// DestroySubflow ends one subflow, or gives up one whose SYN is unanswered. That
// there is none any more is no error.
type DestroySubflow struct {
	Token         Token
	Local, Remote netip.AddrPort
}

// RemoveAddr ends the subflows with this address id and tells the peer to
// (REMOVE_ADDR), which reaches it even if they are dead. With a Local, where the
// id was used, the peer is to be told in any case; without, it is only about
// giving the id back, and that it is not known is no error.
type RemoveAddr struct {
	Token   Token
	LocalID uint8
	Local   netip.AddrPort
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

// Measure asks for a sample of one subflow, soon. The answer is Measured, or
// SubflowMissing where the kernel has no such subflow.
type Measure struct {
	Token         Token
	Local, Remote netip.AddrPort
}

// Probe has keep-alive probes sent on one subflow when nothing came for a second, each
// second, or no longer. Samples tell how many have no answer.
type Probe struct {
	Token         Token
	Local, Remote netip.AddrPort
	On            bool
	// Backup is the priority that the subflow has.
	Backup bool
}

// Blame tells people that detours through a waypoint rest: those of this kind, or of all
// kinds, are not taken to Server until then; a zero Server stands for all servers. Err is
// what was seen, Mend what people can do about it.
type Blame struct {
	Waypoint string
	Kind     Kind
	AllKinds bool
	Server   netip.AddrPort
	Err      error
	Mend     string
	Until    time.Time
}

func (CreateSubflow) action()  {}
func (DestroySubflow) action() {}
func (RemoveAddr) action()     {}
func (SetBackup) action()      {}
func (RequestDetours) action() {}
func (Measure) action()        {}
func (Probe) action()          {}
func (Blame) action()          {}
