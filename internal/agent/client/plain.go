package client

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// plainConnections returns the ends of MPTCP sockets that speak plain TCP, ordered by their servers. It
// leaves out connections that a program of this host accepted. Such a connection is at a port where a
// program listens, or its subflow shows that it was accepted.
func (h *host) plainConnections() ([]path.Ends, error) {
	var fallen []path.Ends
	err := h.kernel.Fallbacks(func(c *mptcp.Connection) bool {
		if c.Remote.Port() != 0 {
			fallen = append(fallen, path.Ends{Local: c.Local, Remote: c.Remote})
		}
		return true
	})
	if err != nil || len(fallen) == 0 {
		return nil, err
	}
	listening, err := h.listeners.TCP()
	if err != nil {
		return nil, err
	}
	return plainOpened(fallen, listening, h.accepted), nil
}

// accepted reports whether a program of this host accepted the connection that began with a subflow.
func (h *host) accepted(ends path.Ends) bool {
	s, err := h.kernel.Subflow(ends.Local, ends.Remote)
	return err == nil && s.ServerSide
}

// plainOpened returns the connections that fell back, without those that this host accepted. If one
// connection to a server was not accepted, it takes the others to that server as not accepted, too.
func plainOpened(fallen []path.Ends, listening []netip.AddrPort, accepted func(path.Ends) bool) (opened []path.Ends) {
	accepting := make(map[uint16]bool)
	for _, l := range listening {
		accepting[l.Port()] = true
	}
	slices.SortFunc(fallen, func(a, b path.Ends) int { return a.Remote.Compare(b.Remote) })
	for _, ends := range fallen {
		known := len(opened) > 0 && opened[len(opened)-1].Remote == ends.Remote
		if !accepting[ends.Local.Port()] && (known || !accepted(ends)) {
			opened = append(opened, ends)
		}
	}
	return opened
}

// remotes returns the servers of connections, one for each.
func remotes(conns []path.Ends) (servers []netip.AddrPort) {
	for _, ends := range conns {
		servers = append(servers, ends.Remote)
	}
	return servers
}
