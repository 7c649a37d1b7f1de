package mptcp

import (
	"cmp"
	"net/netip"
	"slices"
)

// Connection is a live MPTCP connection as sock_diag shows it.
type Connection struct {
	Token      uint32
	Local      netip.AddrPort // address of the initial subflow, even after that has ended
	Remote     netip.AddrPort // the address the program connected to
	ServerSide bool           // this host accepted it
	State      TCPState       // of the MPTCP socket
	Fallback   bool           // plain TCP, usually since the handshake; no subflows are possible
	// Established reports whether subflows can be created: the kernel has sent the event Established. It is false until
	// data has been exchanged, and with Fallback.
	Established bool
	Traffic     Traffic
	Subflows    []Subflow // open or connecting, not closing; sorted by local address

	orphan   bool // no program has the connection open
	progress Progress
}

// over reports whether the kernel has sent Closed for the connection, or will send it only when the program closes a
// socket that it cannot use any more. An orphan delivers its remaining data by its existing subflows. A connection that
// waits to be accepted is not an orphan, although no program has it open yet.
func (c *Connection) over() bool {
	return c.State == StateClose || c.orphan && !c.ServerSide
}

// Traffic counts the program's bytes. A byte counts once even if several subflows carried it. All fields are zero on
// kernels before 6.5.
type Traffic struct {
	BytesSent     uint64
	BytesReceived uint64
	BytesAcked    uint64
	BytesRetrans  uint64 // moved to another subflow
}

// Connections implements Kernel. A connection that begins or ends during the call may be missing or have no
// subflows.
func (n *Namespace) Connections() ([]Connection, error) {
	n.diagMu.Lock()
	defer n.diagMu.Unlock()

	byToken := make(map[uint32]*Connection)
	err := n.diag.dumpConnections(protocolMPTCP, func(c *Connection) bool {
		found := *c
		byToken[c.Token] = &found
		return true
	})
	if err != nil {
		return nil, err
	}
	err = n.diag.dumpSubflows(func(s *Subflow) bool {
		if c := byToken[s.Token]; c != nil && s.State.open() {
			c.Subflows = append(c.Subflows, *s)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	all := make([]Connection, 0, len(byToken))
	for _, c := range byToken {
		slices.SortFunc(c.Subflows, func(a, b Subflow) int {
			return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
		})
		c.ServerSide = acceptedHere(c.Subflows)
		c.Established = !c.Fallback && established(c.Subflows)
		if !c.over() {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b Connection) int { return cmp.Compare(a.Token, b.Token) })
	return all, nil
}

// Fallbacks implements Kernel.
func (n *Namespace) Fallbacks(yield func(*Connection) bool) error {
	n.diagMu.Lock()
	defer n.diagMu.Unlock()
	return n.diag.dumpConnections(protocolMPTCP, func(c *Connection) bool {
		return !c.Fallback || c.over() || yield(c)
	})
}

// acceptedHere reports whether this host accepted the connection. The initial subflow shows it. Without that, the side
// that opened the other subflows counts as the client, which is wrong if a server's path manager opens subflows. That
// is rare.
func acceptedHere(subflows []Subflow) bool {
	for _, s := range subflows {
		if s.Initial {
			return s.ServerSide
		}
	}
	for _, s := range subflows {
		if !s.ServerSide {
			return false
		}
	}
	return len(subflows) > 0
}

// established reports whether the connection is established. Any subflow shows it. A connection without subflows had
// some, so it is established.
func established(subflows []Subflow) bool {
	return len(subflows) == 0 || slices.ContainsFunc(subflows, func(s Subflow) bool { return s.FullyEstablished })
}
