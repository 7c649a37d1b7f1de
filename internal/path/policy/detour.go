package policy

import "net/netip"

// DetourID identifies one detour for the life of the process.
type DetourID string

// Detour is one route to servers through a waypoint. Kinds Uplink and Port pass no waypoint.
type Detour struct {
	ID       DetourID
	Kind     Kind
	Waypoint string
	// Local is the source address of its subflows. If zero, the connection's own is used.
	Local netip.Addr
	// Remote is the destination of its subflows' SYNs. If its address or port is zero, the server's own is used.
	Remote netip.AddrPort
	// Server is the only server that the detour reaches. If zero, it reaches any.
	Server netip.AddrPort
	// Endpoint is the waypoint's address at which a tunnel ends. If zero, the waypoint's address is that of Remote.
	Endpoint netip.Addr
}

// Target returns the address to which a subflow over d connects to reach server. ok is false if d does not lead to
// the server. Both must be of the same address family. The server must not be the waypoint itself: that detour would
// be the direct path, or lead through a tunnel to the tunnel's own end.
func (d *Detour) Target(server netip.AddrPort) (netip.AddrPort, bool) {
	if d.Server.IsValid() && d.Server != server {
		return netip.AddrPort{}, false
	}
	if d.Kind == Port {
		return server, true
	}
	addr, port := d.Remote.Addr(), d.Remote.Port()
	if !addr.IsValid() {
		addr = server.Addr()
	}
	if port == 0 {
		port = server.Port()
	}
	to := netip.AddrPortFrom(addr, port)
	if d.Local.IsValid() {
		return to, addr.Is4() == server.Addr().Is4() && d.Local.Is4() == addr.Is4() && d.Endpoint != server.Addr()
	}
	return to, addr.Is4() == server.Addr().Is4() && to != server
}
