package path

import (
	"net/netip"
	"time"
)

// Kind is how a detour leads to the server, in the order of preference: what is
// ready at once and works for any server comes first (the DCol paper, section IV).
type Kind uint8

const (
	VPN    Kind = iota // subflow to the server itself, from a tunnel's address
	InBand             // subflow to the waypoint; the SYN carries the server's address
	Mapped             // subflow to a port of the waypoint that leads to one server
	nKinds
)

func (k Kind) String() string {
	if k >= nKinds {
		return "unknown"
	}
	return [...]string{"vpn", "in-band", "mapped"}[k]
}

// DetourID names one detour for as long as the process lives.
type DetourID string

// Detour is one way to reach servers through a waypoint.
type Detour struct {
	ID       DetourID
	Kind     Kind
	Waypoint string
	// Local is the address its subflows start from; zero: the connection's own.
	Local netip.Addr
	// Remote is where its subflows' SYNs go. A zero address stands for the
	// server's own, a zero port for the server's.
	Remote netip.AddrPort
	// Server is the only server it leads to; zero: any.
	Server netip.AddrPort
}

// target says where a subflow over d to server connects to, and whether d
// leads there at all: right server, same address family.
func (d Detour) target(server netip.AddrPort) (netip.AddrPort, bool) {
	if d.Server.IsValid() && d.Server != server {
		return netip.AddrPort{}, false
	}
	addr, port := d.Remote.Addr(), d.Remote.Port()
	if !addr.IsValid() {
		addr = server.Addr()
	}
	if port == 0 {
		port = server.Port()
	}
	if addr.Is4() != server.Addr().Is4() || d.Local.IsValid() && d.Local.Is4() != addr.Is4() {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr, port), true
}

// offered is a detour with what was learned about it.
type offered struct {
	Detour
	since time.Time
	// gone: withdrawn, remembered only while subflows use it.
	gone bool
	// deadSince: when its waypoint stopped answering; zero while it answers.
	deadSince time.Time
}

// route is one detour towards one server, the unit of success and failure.
type route struct {
	detour DetourID
	server netip.AddrPort
}

// record is a route's recent failures.
type record struct {
	failures int
	until    time.Time // not tried before
}
