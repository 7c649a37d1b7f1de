package path

import (
	"net/netip"
	"slices"
	"time"
)

// This file tracks the host's addresses, including those of its tunnels.

// localAddrs handles a change of the host's addresses. Failures seen on the previous network are
// forgotten, and data sent from an address that is gone may be lost. A tunnel that comes or goes
// does not count as another network.
func (m *Manager) localAddrs(ev LocalAddrs, now time.Time) {
	for _, a := range ev.Tunnels {
		m.tunnels[a] = true
	}
	addrs := append(make([]netip.Addr, 0, len(ev.Addrs)), ev.Addrs...) // not nil, even if empty
	slices.SortFunc(addrs, netip.Addr.Compare)
	if m.addrs != nil && len(m.newer) == 0 && slices.Equal(m.addrs, addrs) {
		return
	}
	moved := m.addrs == nil || !slices.Equal(m.withoutTunnels(m.addrs), m.withoutTunnels(addrs))
	m.addrs, m.newer = addrs, nil
	if moved {
		m.network++
		clear(m.retries)
		m.forgetTrials()
		m.forgiveSilence()
	}
	for _, c := range inOrder(m.conns) {
		if moved {
			c.direct, c.room, c.ask = retry{}, retry{}, retry{}
		}
		for _, s := range c.subflows {
			if !m.hasSource(s) {
				c.doubt(s) // it survives if its address comes back
			}
		}
		m.step(c, now)
	}
}

func (m *Manager) withoutTunnels(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return m.tunnels[a] })
}

// hasSource reports whether this host still has the subflow's source address.
func (m *Manager) hasSource(s *subflow) bool {
	return !s.local.Addr().IsValid() || m.owns(s.local.Addr())
}

func (m *Manager) owns(a netip.Addr) bool {
	return m.addrs == nil || slices.Contains(m.addrs, a) || slices.Contains(m.newer, a)
}

// startsFrom takes in where the kernel says that a subflow starts. What it says and what
// is told of addresses do not come in order: an address that is not known may be newer
// than what was told, or gone meanwhile. It counts as this host's until LocalAddrs says.
func (m *Manager) startsFrom(local netip.AddrPort) {
	if a := local.Addr(); a.IsValid() && !m.owns(a) {
		m.newer = append(m.newer, a)
		m.do(ReadAddrs{})
	}
}

// source returns the source address for new subflows: the connection's own address while this host
// has it, otherwise zero, which leaves the choice to routing. ok is false if the host has no
// suitable address.
func (m *Manager) source(c *conn) (from netip.Addr, ok bool) {
	if m.owns(c.local.Addr()) {
		return c.local.Addr(), true
	}
	return from, slices.ContainsFunc(m.addrs, func(a netip.Addr) bool {
		return a.Is4() == c.server.Addr().Is4() && !m.tunnels[a]
	})
}

// moving reports whether the host's address changed and a new direct subflow is being opened.
// Subflows from the old address still take up the server's few places. So detours leave the one
// that may be free to the direct subflow, over which the others can be removed.
func (m *Manager) moving(c *conn) bool {
	return c.has(func(s *subflow) bool { return s.direct && !s.up }) &&
		(c.removeAddrPending() || c.has(func(s *subflow) bool { return !m.hasSource(s) && (s.detour == nil || !s.detour.Local.IsValid()) }))
}

// forgetTunnels drops addresses of tunnels that neither exist nor are on offer.
func (m *Manager) forgetTunnels() {
	for a := range m.tunnels {
		if !slices.Contains(m.addrs, a) && !slices.ContainsFunc(m.general, func(o *offered) bool { return o.Local == a }) {
			delete(m.tunnels, a)
		}
	}
}
