package path

import (
	"maps"
	"net/netip"
	"time"
)

// doors holds the connections that this host accepted and that may have only their first subflow.
type doors map[Token]bool

// accepted takes in a connection that this host accepted, if its rule refuses joins or announces addresses.
func (m *Manager) accepted(ev ConnEstablished, now time.Time) {
	r := m.rules.of(ev.Local.Port(), ev.Remote.Addr(), ev.Cgroup)
	if r.RefuseJoins {
		m.doors[ev.Token] = true
	} else if r.Announce {
		m.announce(m.announcements.add(ev, r), now)
	}
}

// forgetAccepted forgets the accepted connections that do not exist any more.
func (m *Manager) forgetAccepted(live []Token) {
	exists := make(map[Token]bool, len(live))
	for _, t := range live {
		exists[t] = true
	}
	maps.DeleteFunc(m.doors, func(t Token, _ bool) bool { return !exists[t] })
	for t := range m.announcements.byToken {
		if !exists[t] {
			m.announcements.remove(t)
		}
	}
}

// refuseJoin ends a subflow that the peer opened on a connection that refuses joins. It reports whether it did.
func (m *Manager) refuseJoin(token Token, local, remote netip.AddrPort) bool {
	if !m.doors[token] {
		return false
	}
	m.out.do(DestroySubflow{Token: token, Local: local, Remote: remote})
	return true
}
