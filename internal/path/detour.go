package path

import (
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

// offered is a detour on offer.
type offered struct {
	Detour
	since time.Time
	trial *trial // nil: needs no trial
}

// offer makes a detour available to every connection that can use it.
func (m *Manager) offer(d Detour, now time.Time) {
	delete(m.lost, d.via())
	if old := m.detours[d.ID]; old != nil {
		if old.Detour == d {
			return
		}
		m.drop(old, now)
	}
	o := &offered{Detour: d, since: now, trial: m.trialOf(&d)}
	m.detours[d.ID] = o
	if d.Local.IsValid() {
		m.tunnels[d.Local] = true
	}
	conns := m.conns
	if d.Server.IsValid() {
		m.specific[d.Server] = append(m.specific[d.Server], o)
		conns = m.byServer[d.Server]
	} else {
		m.general = append(m.general, o)
		m.forgetRoutes(d.ID)
	}
	for _, c := range inOrder(conns) {
		c.recognise(&o.Detour)
		m.step(c, now)
	}
}

// withdraw takes a detour off offer. Its subflows stay.
func (m *Manager) withdraw(ev DetourWithdrawn, now time.Time) {
	if o := m.detours[ev.ID]; o != nil {
		m.drop(o, now)
	}
}

// waypointLost records since when a waypoint does not answer.
func (m *Manager) waypointLost(v via, now time.Time) {
	if _, ok := m.lost[v]; !ok {
		m.lost[v] = now
		m.forgive(v, now)
	}
}

func (m *Manager) drop(o *offered, now time.Time) {
	delete(m.detours, o.ID)
	if o.trial != nil {
		o.trial.left = now
	}
	without := func(list []*offered) []*offered {
		return slices.DeleteFunc(list, func(x *offered) bool { return x == o })
	}
	if !o.Server.IsValid() {
		m.general = without(m.general)
	} else if rest := without(m.specific[o.Server]); len(rest) > 0 {
		m.specific[o.Server] = rest
	} else {
		delete(m.specific, o.Server)
	}
}

// leading returns an iterator over the detours on offer that may reach server.
func (m *Manager) leading(server netip.AddrPort) func(yield func(*offered) bool) {
	return func(yield func(*offered) bool) {
		for _, list := range [2][]*offered{m.general, m.specific[server]} {
			for _, o := range list {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// kindUnready records why this host cannot use a kind of detour of a waypoint.
func (m *Manager) kindUnready(ev KindUnready) {
	m.unready = slices.DeleteFunc(m.unready, func(r Resting) bool { return r.Waypoint == ev.Waypoint && r.Kind == ev.Kind })
	if ev.Err != nil {
		m.unready = append(m.unready, Resting{ev.Kind, ev.Waypoint, Rest{Cause: RestsUnready, Err: ev.Err}})
	}
}

// waypointReady lets every connection that lacks a detour ask at once, without waiting for its
// backoff.
func (m *Manager) waypointReady(ev WaypointReady, now time.Time) {
	for v := range m.lost {
		if v.waypoint == ev.Waypoint && (!ev.Addr.IsValid() || v.addr == ev.Addr) {
			delete(m.lost, v)
		}
	}
	for _, c := range inOrder(m.conns) {
		if c.short || c.wants() {
			c.ask = retry{}
			m.step(c, now)
		}
	}
}
