package rules

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/netstate"
)

// Mapping sends TCP connections that Client opens to Port of this host on to Server.
type Mapping struct {
	Client netip.Addr
	Port   uint16
	Server netip.AddrPort
	Member MemberID
	Left   time.Duration // until it expires by itself
}

// Key is what the kernel looks a mapping up by. The client's port is no part of it, so all
// subflows and connections to one server share a mapping.
type Key struct {
	Client netip.Addr
	Port   uint16
}

// Key returns what the kernel looks the mapping up by.
func (m Mapping) Key() Key { return Key{m.Client, m.Port} }

// MemberID stands for a member in connection marks, as long as the table lives. Zero is nobody.
type MemberID uint16

// MaxMembers is how many members a mark can tell apart.
const MaxMembers = 1<<16 - 1

// The upper half of a connection's mark says that it is ours, the lower whose it is.
const (
	markOurs = 0xdc01_0000
	markMask = 0xffff_0000
)

// Mark is the conntrack mark of the member's connections.
func (id MemberID) Mark() uint32 { return markOurs | uint32(id) }

// MemberOfMark is the inverse of MemberID.Mark.
func MemberOfMark(mark uint32) (MemberID, bool) {
	return MemberID(mark &^ markMask), mark&markMask == markOurs && mark&^markMask != 0
}

// Ours matches the conntrack entries of all members.
func Ours() netstate.MarkMatch {
	return netstate.MarkMatch{Value: markOurs, Mask: markMask}
}

// Of matches the conntrack entries of one member.
func Of(id MemberID) netstate.MarkMatch {
	return netstate.MarkMatch{Value: id.Mark(), Mask: ^uint32(0)}
}

// Member is who a MemberID stands for. Serial is that of the certificate last used.
type Member struct {
	ID           MemberID
	Name, Serial string
}

// Limits hold for each member. Zero means no limit.
type Limits struct {
	Connections int   // live at once
	Bandwidth   int64 // bytes per second of IP packets, both directions together
}

// State is all that a table holds.
type State struct {
	Mappings []Mapping
	Members  []Member
	// Guarded4 and Guarded6 are the interfaces from which strangers' packets must not be forwarded:
	// those that were there when we, and nobody before us, switched on the host's forwarding.
	Guarded4, Guarded6 []string
}

// Change is done as one transaction. Renewed mappings and known members may exist or not; they are
// given the new lease and serial.
type Change struct {
	Add, Renew, Remove []Mapping
	Members            []Member
}

// Kernel is where the table lives.
type Kernel interface {
	// Load reads the table. same tells whether its rules are those that Install would write for
	// the limits; without a table the state is empty and same is false.
	Load() (state State, same bool, err error)
	// Install puts a table with this state in place of what there is, atomically.
	Install(State) error
	// Commit changes the installed table. It does all of the change, or returns an error and has
	// done nothing.
	Commit(Change) error
	// Present tells whether the table is there; firewall reloads flush everybody's tables.
	Present() (bool, error)
	Close() error
}
