package rules

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// Mapping forwards TCP connections from Client to Port of this host to Server.
type Mapping struct {
	Client netip.Addr
	Port   uint16
	Server netip.AddrPort
	Member MemberID
	Left   time.Duration // until it expires by itself
}

// Key is the key with which the kernel looks up a mapping. It does not include the client's port, so all subflows and
// connections to one server share a mapping.
type Key struct {
	Client netip.Addr
	Port   uint16
}

// Key returns the mapping's key.
func (m Mapping) Key() Key { return Key{m.Client, m.Port} }

// Admission lets TCP connections from Addr go to any server that is not forbidden: connections whose SYN names the server
// (Kind InBand, IPv4 only), or connections out of a tunnel (other kinds). In a tunnel, and without the authenticator, an
// address belongs to a single member. Of kind Converter, it is the converter that connects, and Addr is invalid.
type Admission struct {
	Addr   netip.Addr
	Kind   wire.Kind
	Member MemberID
	Left   time.Duration // until it expires by itself
}

// MemberID identifies a member in connection marks, as long as the table exists. Zero is invalid.
type MemberID uint16

// Member is the member with a MemberID. Serial is that of the last used certificate.
type Member struct {
	ID           MemberID
	Name, Serial string
}

// InBandMode decides which SYNs that name a server are forwarded to it.
type InBandMode uint8

// The modes.
const (
	InBandOff           InBandMode = iota
	InBandOpen                     // all from an admitted address
	InBandAuthenticated            // those that eBPF found genuine, and marked as their member's
)

func (m InBandMode) String() string {
	return [...]string{"off", "open", "authenticated"}[m]
}

// Options are the settings of the rules. Connections, Rate and Bandwidth are limits for each member, Total and Quota for all
// members together. Zero means no limit.
type Options struct {
	Marks       Marks  // bits that the table uses; 0: DefaultMarks
	Connections int    // live at once
	Rate        int    // new connections per second
	Bandwidth   int64  // bytes per second of IP packets, both directions together
	Total       int64  // the same of all members, each direction by itself
	Quota       uint64 // bytes of IP packets; see State.Used
	InBand      InBandMode
	Converter   uint16 // TCP port of the one on this host; 0: there is none
}

// State is the content of a table.
type State struct {
	Mappings   []Mapping
	Admissions []Admission
	Members    []Member
	// TunnelInterfaces are the interfaces of tunnels.
	TunnelInterfaces []string
	// No connection is forwarded to an address in Forbidden or a port in ForbiddenPorts. For mappings,
	// that is decided when they are granted.
	Forbidden      []egress.Range
	ForbiddenPorts []uint16
	// Guarded4 and Guarded6 are the interfaces from which strangers' packets must not be forwarded: those
	// that existed when we switched on the host's forwarding. They are empty if it was on before.
	Guarded4, Guarded6 []string
	// Closed reports that new connections are rejected. Open ones continue.
	Closed bool
	// Used is the used part of the quota. Packets beyond the quota are answered with a reset.
	Used uint64
	// Stopped lists members whose new connections are rejected. Open ones continue.
	Stopped []MemberID
	// Awaited are members that are not admitted, but may be soon. For Await, packets of the converter's open connections
	// for them are dropped and not rejected, so that these connections continue when their member is admitted. Load returns
	// neither.
	Awaited []MemberID
	Await   time.Duration
}

// Change is a change of the table, which is made in one transaction. Renewed mappings, admissions and
// known members get the new lease and serial, and are added if the table lacks them. If an address
// passes to another member, Revoke has it for the one and Admit for the other.
type Change struct {
	Add, Renew, Remove []Mapping
	Admit, Revoke      []Admission
	Members            []Member
	// Unawait removes members from State.Awaited.
	Unawait []MemberID
}

// Kernel reads and writes the table.
type Kernel interface {
	// Load reads the table. same reports whether its rules are those that Install would write for
	// the options; without a table the state is empty and same is false. Ranges and lists come in
	// order.
	Load() (state State, same bool, err error)
	// Install replaces the table, if there is one, by a table with this state, atomically.
	Install(State) error
	// Commit changes the installed table. If it returns an error, nothing has changed.
	Commit(Change) error
	// SetForbidden and SetTunnelInterfaces set these parts of the state, each in one transaction.
	SetForbidden([]egress.Range) error
	SetTunnelInterfaces([]string) error
	// SetClosed and SetUsed set State.Closed and State.Used of the installed table, and Used reads State.Used. SetUsed
	// and Used may be called only if there is a quota.
	SetClosed(bool) error
	SetUsed(uint64) error
	Used() (uint64, error)
	// SetStopped sets State.Stopped of the installed table.
	SetStopped([]MemberID) error
	// Present reports whether the table exists, with the rules that we wrote. A firewall reload flushes all tables,
	// and may then load a listing of ours, in which nft has changed rules.
	Present() (bool, error)
	// Removed returns a channel that delivers a value when another program has removed the table or some of its rules. If
	// that happens again and again, it delivers less and less often.
	Removed() <-chan struct{}
	Close() error
}
