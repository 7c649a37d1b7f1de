package client

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// plainConnections returns the servers of MPTCP sockets that speak plain TCP, one for each connection.
func (h *host) plainConnections() ([]netip.AddrPort, error) {
	conns, err := h.kernel.Connections()
	if err != nil {
		return nil, err
	}
	conns = slices.DeleteFunc(conns, func(conn mptcp.Connection) bool { return !conn.Fallback || conn.Remote.Port() == 0 })
	if len(conns) == 0 {
		return nil, nil
	}
	listening, err := h.listeners.TCP()
	if err != nil {
		return nil, err
	}
	return plainServers(conns, listening), nil
}

// plainServers leaves out connections that a program of this host accepted: the kernel does not say which those
// are, but they are at a port that is listened on.
func plainServers(fallen []mptcp.Connection, listening []netip.AddrPort) []netip.AddrPort {
	accepting := make(map[uint16]bool)
	for _, l := range listening {
		accepting[l.Port()] = true
	}
	var servers []netip.AddrPort
	for _, conn := range fallen {
		if !conn.ServerSide && !accepting[conn.Local.Port()] {
			servers = append(servers, conn.Remote)
		}
	}
	slices.SortFunc(servers, netip.AddrPort.Compare)
	return servers
}
