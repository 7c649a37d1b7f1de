package path

import (
	"net/netip"
	"slices"
	"time"
)

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
	// Endpoint is the waypoint's address that a tunnel runs to; zero: it is Remote's.
	Endpoint netip.Addr
}

// target says where a subflow over d to server connects to, and whether d leads
// there at all: right server, same address family, and not the waypoint itself,
// to which its detour would be the direct path, or one through a tunnel to the
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

// via is one address of one waypoint.
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
	trial *trial // nil: it needs none
}

// offer makes a detour known to every connection it fits.
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
	}
	for _, c := range inOrder(conns) {
		c.recognise(&o.Detour)
		m.step(c, now)
	}
}

// withdraw takes a detour off offer. Subflows over it stay.
func (m *Manager) withdraw(ev DetourWithdrawn, now time.Time) {
	if o := m.detours[ev.ID]; o != nil {
		m.drop(o, now)
	}
}

func (m *Manager) lose(v via, now time.Time) {
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

// leading yields the detours on offer that may lead to server.
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

// kindUnready remembers why a kind is not to be had of a waypoint.
func (m *Manager) kindUnready(ev KindUnready) {
	m.unready = slices.DeleteFunc(m.unready, func(r Resting) bool { return r.Waypoint == ev.Waypoint && r.Kind == ev.Kind })
	if ev.Err != nil {
		m.unready = append(m.unready, Resting{ev.Kind, ev.Waypoint, Rest{Cause: RestsUnready, Err: ev.Err}})
	}
}

// waypointReady lets every connection that lacks a detour ask now, not at the
// end of its backoff.
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
