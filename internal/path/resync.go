package path

import "time"

// resync makes what is believed equal to what is: events were lost, or the
// agent started beside connections that were there before it.
func (m *Manager) resync(live []LiveConn, now time.Time) {
	seen := make(map[Token]bool, len(live))
	for _, l := range live {
		seen[l.Token] = true
		c := m.conns[l.Token]
		if c == nil {
			c = m.newConn(l.Token, l.Local, l.Remote, now)
			m.track(c)
		}
		m.reconcile(c, l.Subflows, now)
		for _, o := range m.detours {
			c.recognise(o)
		}
		m.step(c, now)
	}
	for t := range m.conns {
		if !seen[t] {
			m.forget(t)
		}
	}
}

// reconcile compares one connection's subflows. Those still joining stay: the
// kernel's list has only the established ones.
func (m *Manager) reconcile(c *conn, live []LiveSubflow, now time.Time) {
	for _, l := range live {
		s := c.byAddrs(l.Local, l.Remote)
		if s == nil {
			if s = c.byID(l.LocalID); s == nil || s.up || s.remote != l.Remote {
				s = &subflow{id: l.LocalID, remote: l.Remote, direct: l.Remote == c.server}
				c.subflows = append(c.subflows, s)
			}
		}
		if !s.up {
			s.up, s.since, s.moved = true, now, now
		}
		s.local, s.backup = l.Local, l.Backup
		c.lastID = max(c.lastID, l.LocalID)
	}
	var lost []*subflow
	for _, s := range c.subflows {
		if s.up && !lists(live, s) {
			lost = append(lost, s)
		}
	}
	for _, s := range lost {
		c.remove(s)
		c.end(s, now)
	}
}

func lists(live []LiveSubflow, s *subflow) bool {
	for _, l := range live {
		if l.Local == s.local && l.Remote == s.remote {
			return true
		}
	}
	return false
}
