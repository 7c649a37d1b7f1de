package path

import (
	"net/netip"
	"time"
)

// doors holds the connections that others made to this host and that may have only their first subflow.
type doors map[Token]bool

// accepted takes in a connection that this host accepted.
func (m *Manager) accepted(ev ConnEstablished, now time.Time) {
	r := m.rules.of(ev.Local.Port(), ev.Remote.Addr(), ev.Cgroup)
	if r.RefuseJoins {
		m.doors[ev.Token] = true
	} else if r.Announce {
		m.announce(m.announcements.add(ev, r), now)
	}
}

// refuseJoin ends a subflow that the peer opened. It reports whether it did.
func (m *Manager) refuseJoin(token Token, local, remote netip.AddrPort) bool {
	if !m.doors[token] {
		return false
	}
	m.out.do(DestroySubflow{Token: token, Local: local, Remote: remote})
	return true
}
