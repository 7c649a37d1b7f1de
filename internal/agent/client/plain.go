package client

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// plainConnections returns the ends of MPTCP sockets that speak plain TCP, ordered by their servers. A program of this host
// may also have accepted such a connection. Then it is at a port that is listened on, or its subflow shows it.
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

// plainOpened returns the connections that fell back, without those that this host accepted. If one connection to a server was
// not accepted, no other is.
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

// plainServers remembers when connections to servers fell back to plain TCP. Each connection counts once, when it is found:
// the server may have changed by the end of a long one.
type plainServers struct {
	conns map[path.Ends]bool           // those of the last look
	found map[netip.AddrPort]time.Time // when the youngest of these was found
}

// take takes in the connections that there are now, and reports whether one is new.
func (p *plainServers) take(conns []path.Ends, now time.Time) (changed bool) {
	before, found := p.conns, p.found
	p.conns, p.found = make(map[path.Ends]bool), make(map[netip.AddrPort]time.Time)
	for _, ends := range conns {
		p.conns[ends] = true
		if !before[ends] {
			changed = true
			p.found[ends.Remote] = now
		} else if at := found[ends.Remote]; at.After(p.found[ends.Remote]) {
			p.found[ends.Remote] = at
		}
	}
	return changed
}

// list returns the servers for the relay.
func (p *plainServers) list() (list []relay.PlainServer) {
	for server, at := range p.found {
		list = append(list, relay.PlainServer{Server: server, Found: at})
	}
	slices.SortFunc(list, func(a, b relay.PlainServer) int { return a.Server.Compare(b.Server) })
	return list
}

// remotes returns the servers of connections, one for each.
func remotes(conns []path.Ends) (servers []netip.AddrPort) {
	for _, ends := range conns {
		servers = append(servers, ends.Remote)
	}
	return servers
}
