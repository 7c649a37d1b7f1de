package path

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// DetourID identifies one detour for the life of the process.
type DetourID string

// Detour is one route to servers through a waypoint.
type Detour struct {
	ID       DetourID
	Kind     Kind
	Waypoint string
	// Local is the source address of its subflows. If zero, the connection's own is used.
	Local netip.Addr
	// Remote is the destination of its subflows' SYNs. A zero address or port stands for the
	// server's own.
	Remote netip.AddrPort
	// Server is the only server that the detour reaches. If zero, it reaches any.
	Server netip.AddrPort
	// Endpoint is the waypoint's address at which a tunnel ends. If zero, it is Remote's address.
	Endpoint netip.Addr
}

// target returns the address to which a subflow over d to server connects, and whether d reaches
// the server at all. It must lead to that server in the same address family. The server must not be
// the waypoint itself, since that detour would be the direct path or lead through a tunnel to the
// tunnel's own end.
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

// offers holds what the waypoints offer: the detours, which waypoints do not answer, and which kinds
// this host cannot use.
type offers struct {
	byID     map[DetourID]*offered
	general  []*offered                    // reach any server
	specific map[netip.AddrPort][]*offered // reach one server
	lost     map[via]time.Time             // waypoints that no longer answer, and since when
	addrs    map[string][]netip.Addr       // of the hosts of waypoints in use
	unready  []Resting                     // kinds of detours that no connection can use
}

// offered is a detour on offer.
type offered struct {
	Detour
	since time.Time
	trial *trial // nil: needs no trial
}

// unproven reports whether it is not known yet if the path lets the detour's SYNs through.
func (o *offered) unproven() bool { return o.trial != nil && !o.trial.proven }

// drop takes a detour off offer. Its subflows stay.
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

// leave drops all that a waypoint offers at one address.
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

// leading returns an iterator over the detours on offer that may reach server.
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

// target returns the address to which a subflow of a connection over d would connect, and whether the connection may use d.
// One that began in a tunnel keeps to encrypted tunnels: near this host, nobody is to see what it carries, and to whom. A
// tunnel to the server's own host is its direct path.
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

// endsAt reports whether a tunnel leads to the host that has this address.
func (of *offers) endsAt(d *Detour, addr netip.Addr) bool {
	return d.Endpoint == addr || slices.Contains(of.addrs[d.Waypoint], addr)
}

// recognise assigns the detours on offer to the connection's subflows that use them.
func (of *offers) recognise(c *conn) {
	for o := range of.leading(c.server) {
		of.assign(c, &o.Detour)
	}
}

// assign assigns d to subflows that use it and that this manager did not create. A subflow from
// a tunnel's address to the server itself counts as direct until the tunnel is known. An in-band
// subflow looks like a mapped one if the port is the server's own; it is taken for in-band, which
// is more likely because it needs no mapping.
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
