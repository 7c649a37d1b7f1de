package mptcp

import (
	"cmp"
	"net/netip"
	"slices"
)

// Connection is one live MPTCP connection as sock_diag shows it.
type Connection struct {
	Token      uint32
	Local      netip.AddrPort // of the initial subflow, also when that is gone
	Remote     netip.AddrPort // the address the program connected to
	ServerSide bool           // this host accepted it
	State      TCPState       // of the MPTCP socket
	Fallback   bool           // it is plain TCP, mostly since its handshake, and takes no subflows
	// Established is whether subflows can be created: the Established event was
	// sent. It is false until data has been exchanged, and with Fallback.
	Established bool
	Traffic     Traffic
	Subflows    []Subflow // those that work or may yet: no closing ones; by local address

	orphan   bool   // no program holds it
	received uint64 // up to where its data has arrived
}

// over reports that the kernel has sent Closed for the connection, or will not
// before the program closes a socket that is of no more use. What an orphan has
// still to deliver it delivers by the subflows it has. (A connection that waits
// to be accepted is no orphan, though no program holds it yet.)
func (c *Connection) over() bool {
	return c.State == StateClose || c.orphan && !c.ServerSide
}

// Traffic counts the bytes of the program, each once however many subflows
// carried it. Zero on kernels before 6.5.
type Traffic struct {
	BytesSent     uint64
	BytesReceived uint64
	BytesAcked    uint64
	BytesRetrans  uint64 // moved to another subflow
}

// Connections implements Kernel. A connection that began or ended while the
// kernel was being asked may be missing or without subflows.
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

// acceptedHere tells the side from the subflows: from the initial one, and when
// that is gone from who opened the others. (A server whose path manager opens
// subflows itself is then mistaken; servers hardly ever do.)
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

// established is told by any subflow; a connection that has lost all was
// established before.
func established(subflows []Subflow) bool {
	return len(subflows) == 0 || slices.ContainsFunc(subflows, func(s Subflow) bool { return s.FullyEstablished })
}
