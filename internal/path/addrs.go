package path

import (
	"net/netip"
	"slices"
	"time"
)

// This host's addresses, and which of them are its tunnels'.

// localAddrs: on another network the failures on the last one mean nothing, and
// what travelled from an address that is gone may be lost. A tunnel that comes or
// goes is no other network.
func (m *Manager) localAddrs(ev LocalAddrs, now time.Time) {
	for _, a := range ev.Tunnels {
		m.tunnels[a] = true
	}
	addrs := append(make([]netip.Addr, 0, len(ev.Addrs)), ev.Addrs...) // none is not nil
	slices.SortFunc(addrs, netip.Addr.Compare)
	if m.addrs != nil && slices.Equal(m.addrs, addrs) {
		return
	}
	moved := m.addrs == nil || !slices.Equal(m.withoutTunnels(m.addrs), m.withoutTunnels(addrs))
	m.addrs = addrs
	if moved {
		m.network++
		clear(m.retries)
		m.forgetTrials()
		m.forgiveHoles()
	}
	for _, c := range inOrder(m.conns) {
		if moved {
			c.direct, c.room, c.ask = retry{}, retry{}, retry{}
		}
		for _, s := range c.subflows {
			if !m.here(s) {
				c.doubt(s) // it may live on if its address comes back
			}
		}
		m.step(c, now)
	}
}

func (m *Manager) withoutTunnels(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return m.tunnels[a] })
}

// here: the subflow starts from an address that this host still has.
func (m *Manager) here(s *subflow) bool { return !s.local.Addr().IsValid() || m.owns(s.local.Addr()) }

func (m *Manager) owns(a netip.Addr) bool { return m.addrs == nil || slices.Contains(m.addrs, a) }

// source is the address new subflows start from: the connection's own while
// this host has it, then zero for what is routed, while there is any.
func (m *Manager) source(c *conn) (from netip.Addr, ok bool) {
	if m.owns(c.local.Addr()) {
		return c.local.Addr(), true
	}
	return from, slices.ContainsFunc(m.addrs, func(a netip.Addr) bool {
		return a.Is4() == c.server.Addr().Is4() && !m.tunnels[a]
	})
}

// moving: the host's address changed, and a new direct subflow is on its way. The
// server's few places are still taken by subflows from the old address, so
// detours leave the one that may be free to it; over it the others are given up.
func (m *Manager) moving(c *conn) bool {
	return c.has(func(s *subflow) bool { return s.direct && !s.up }) &&
		(c.untold() || c.has(func(s *subflow) bool { return !m.here(s) && (s.detour == nil || !s.detour.Local.IsValid()) }))
}

// forgetTunnels drops tunnels' addresses that are neither there nor on offer.
func (m *Manager) forgetTunnels() {
	for a := range m.tunnels {
		if !slices.Contains(m.addrs, a) && !slices.ContainsFunc(m.general, func(o *offered) bool { return o.Local == a }) {
			delete(m.tunnels, a)
		}
	}
}
