package path

import (
	"slices"
	"time"
)

// resync updates the known connections to those that exist, after events were lost or when the
// agent starts beside existing connections.
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
		m.recogniseAll(c)
		m.step(c, now)
	}
	for t := range m.conns {
		if !seen[t] {
			m.forget(t)
		}
	}
}

// reconcile compares one connection's subflows with the kernel's. Those still joining stay, because
// the kernel lists only established ones.
func (m *Manager) reconcile(c *conn, live []LiveSubflow, now time.Time) {
	for _, s := range slices.Clone(c.subflows) {
		if s.up && !slices.ContainsFunc(live, func(l LiveSubflow) bool { return l.is(s) }) {
			m.end(c, ended{subflow: s, judge: now.Add(verdictDelay)}, now)
		}
	}
	for _, l := range live {
		s := c.find(l.is)
		if s == nil {
			s = c.joining(l.LocalID, l.Local, l.Remote)
		}
		if s == nil {
			s = &subflow{id: l.LocalID, remote: l.Remote, direct: l.Remote == c.server, since: now, foreign: true}
			c.subflows = append(c.subflows, s)
			c.lastID = max(c.lastID, l.LocalID)
			// This or an earlier agent made it a full one, so the server's first data had arrived.
			c.heard = c.heard || !s.direct && s.id != 0 && !l.Backup
		}
		if !s.up {
			s.cameUp(now)
			m.startsFrom(l.Local)
			if s.detour != nil {
				m.cameUp(s.detour)
			}
		}
		s.local, s.backup = l.Local, l.Backup
	}
}

func (l LiveSubflow) is(s *subflow) bool { return l.Local == s.local && l.Remote == s.remote }
