package path

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

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

// target returns the address to which a subflow over d connects to reach server. ok is false if d does not lead to
// the server. Both must be of the same address family. The server must not be the waypoint itself: that detour would
// be the direct path, or lead through a tunnel to the tunnel's own end.
func (d *Detour) target(server netip.AddrPort) (netip.AddrPort, bool) {
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

// via identifies one address of one waypoint.
type via struct {
	waypoint string
	addr     netip.Addr
}

func (d *Detour) via() via {
	if d.Endpoint.IsValid() {
		return via{d.Waypoint, d.Endpoint}
	}
	return via{d.Waypoint, d.Remote.Addr()}
}

// offers holds what the waypoints offer: the detours, the waypoints that do not answer, and the kinds that this host
// cannot use.
type offers struct {
	byID     map[DetourID]*offered
	general  []*offered                    // they reach any server
	specific map[netip.AddrPort][]*offered // they reach one server
	lost     map[via]time.Time             // waypoints that do not answer, and since when
	addrs    map[string][]netip.Addr       // addresses of the hosts of waypoints in use
	unready  []Resting                     // kinds of detours that no connection can use
}

// offered is a detour on offer.
type offered struct {
	Detour
	since time.Time
	trial *trial // nil: needs none
}

// unproven reports whether it is not known yet that the path lets the detour's SYNs through.
func (o *offered) unproven() bool { return o.trial != nil && !o.trial.proven }

// drop takes a detour off offer. Subflows over it stay.
func (of *offers) drop(id DetourID, now time.Time) {
	o := of.byID[id]
	if o == nil {
		return
	}
	delete(of.byID, id)
	if o.trial != nil {
		o.trial.left = now
	}
	without := func(list []*offered) []*offered {
		return slices.DeleteFunc(list, func(x *offered) bool { return x == o })
	}
	if !o.Server.IsValid() {
		of.general = without(of.general)
	} else if rest := without(of.specific[o.Server]); len(rest) > 0 {
		of.specific[o.Server] = rest
	} else {
		delete(of.specific, o.Server)
	}
}

// leave takes all detours of a waypoint at one address off offer.
func (of *offers) leave(v via, now time.Time) {
	delete(of.lost, v)
	of.unready = slices.DeleteFunc(of.unready, func(r Resting) bool { return r.Waypoint == v.waypoint })
	for _, id := range slices.Sorted(maps.Keys(of.byID)) {
		if of.byID[id].via() == v {
			of.drop(id, now)
		}
	}
}

// setUnready records why this host cannot use a kind of detour of a waypoint.
func (of *offers) setUnready(ev KindUnready) {
	of.unready = slices.DeleteFunc(of.unready, func(r Resting) bool { return r.Waypoint == ev.Waypoint && r.Kind == ev.Kind })
	if ev.Err != nil {
		of.unready = append(of.unready, Resting{ev.Kind, ev.Waypoint, Rest{Cause: RestsUnready, Err: ev.Err}})
	}
}

// leading returns an iterator over the detours on offer that may lead to server.
func (of *offers) leading(server netip.AddrPort) func(yield func(*offered) bool) {
	return func(yield func(*offered) bool) {
		for _, list := range [2][]*offered{of.general, of.specific[server]} {
			for _, o := range list {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// target returns the address to which a subflow of the connection over d would connect. ok is false if the connection
// may not use d. A connection that began in a tunnel uses only encrypted tunnels, so that nobody near this host sees
// what it carries and to whom. A tunnel to the server's own host is its direct path.
func (of *offers) target(c *conn, d *Detour) (netip.AddrPort, bool) {
	if c.excluded || c.tunnelled && (d.Kind != WireGuard || of.endsAt(d, c.server.Addr())) {
		return netip.AddrPort{}, false
	}
	return d.target(c.server)
}

func (of *offers) setAddrs(ev WaypointAddrs) {
	if len(ev.Addrs) == 0 {
		delete(of.addrs, ev.Waypoint)
	} else {
		of.addrs[ev.Waypoint] = ev.Addrs
	}
}

// endsAt reports whether a tunnel ends at the host with this address.
func (of *offers) endsAt(d *Detour, addr netip.Addr) bool {
	return d.Endpoint == addr || slices.Contains(of.addrs[d.Waypoint], addr)
}

// recognise assigns the detours on offer to the subflows of the connection that use them.
func (of *offers) recognise(c *conn) {
	for o := range of.leading(c.server) {
		of.assign(c, &o.Detour)
	}
}

// assign assigns d to the subflows that use it and that this manager did not create. A subflow from a tunnel's
// address to the server itself counts as direct until the tunnel is known. An in-band subflow looks like a mapped one
// if the waypoint's port is the server's. It counts as in-band, which is more likely, because that needs no mapping.
func (of *offers) assign(c *conn, d *Detour) {
	remote, ok := of.target(c, d)
	if _, layout := c.rule.Policy.(Layout); d.Kind == Port || d.Kind == Uplink && !layout {
		return
	}
	if !ok || d.Local.IsValid() && d.Local == c.local.Addr() {
		return
	}
	for _, s := range c.subflows {
		better := s.detour == nil || s.why == nil && d.Kind < s.detour.Kind
		if better && s.remote == remote && (!d.Local.IsValid() || d.Local == s.local.Addr()) {
			s.detour, s.direct = d, false
		}
	}
}
