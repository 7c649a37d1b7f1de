package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file handles the kernel's events about connections and subflows, in the order of their life.

// established adds a new connection.
func (m *Manager) established(ev ConnEstablished, now time.Time) {
	if ev.ServerSide {
		m.accepted(ev, now)
		return
	}
	c := m.conns.byToken[ev.Token]
	if c == nil { // else a resync found the connection before its event arrived
		c = m.newConn(ev.Token, ev.Local, ev.Remote, ev.Cgroup, now)
		c.subflows = append(c.subflows, &subflow{
			direct: true, up: true, local: ev.Local, remote: ev.Remote, since: now, moved: now,
		})
		m.conns.add(c)
	}
	c.denyInitial = ev.DenyJoinInitial
	t := m.turn(c, now)
	t.startsFrom(ev.Local)
	m.step(t)
}

func (m *Manager) newConn(t Token, local, remote netip.AddrPort, cgroup string, now time.Time) *conn {
	c := &conn{
		token: t, local: local, remote: remote, server: remote, since: now, seen: now,
		tunnelled: m.inTunnel(local.Addr()), excluded: m.exclusion(remote.Addr()),
		tls:  slices.Contains(m.cfg.TLSPorts, remote.Port()),
		rule: m.rules.of(remote.Port(), remote.Addr(), cgroup),
	}
	spared := m.spared.take(local, now)
	switch {
	case c.excluded != notExcluded:
	case spared:
		c.excluded = excludedSpared
	case c.tunnelled && m.isInTunnels(remote.Addr()):
		c.excluded = excludedTunnel
	}
	c.kind, c.kindSaid = m.cfg.kindOf(c.rule, remote.Port())
	c.due.Item = c
	return c
}

// inTunnel reports whether a connection's first subflow starts in a tunnel. The tunnel may have ended with an earlier
// agent. Then the host lacks the address, even if another subflow from it suggests that the address is new.
func (m *Manager) inTunnel(local netip.Addr) bool {
	return m.host.tunnels[local] || !slices.Contains(m.host.addrs, local) && m.isInTunnels(local)
}

// isInTunnels reports whether an address is in one of the networks that tunnels use.
func (m *Manager) isInTunnels(addr netip.Addr) bool {
	return slices.ContainsFunc(m.cfg.Tunnels, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// kindOf returns the kind of traffic that the operator sets, by the connection's rule or else by the server's port.
func (cfg *Config) kindOf(r *Rule, port uint16) (kind measure.Kind, said bool) {
	switch {
	case r.KindSaid:
		return r.Kind, true
	case slices.Contains(cfg.BulkPorts, port):
		return measure.Bulk, true
	case slices.Contains(cfg.MessagePorts, port):
		return measure.Messages, true
	}
	return measure.Short, false
}

func (m *Manager) connClosed(token Token, now time.Time) {
	delete(m.doors, token)
	m.announcements.remove(token)
	if c := m.conns.byToken[token]; c != nil {
		m.conns.remove(token)
		m.restrictions.end(token, &m.out)
		m.settleAll(c, now)
		m.lately.add(c, now)
		if !c.adopted {
			m.tally.ended(now.Sub(c.since))
		}
	}
}

// announced handles an address that the server announced. If the server denies joins to its first address, subflows
// go to the announced one.
func (m *Manager) announced(c *conn, ev AddrAnnounced) {
	if !c.denied() || c.server.Addr().Is4() != ev.Remote.Addr().Is4() || m.Excludes(ev.Remote.Addr()) {
		return
	}
	port := ev.Remote.Port()
	if port == 0 {
		port = c.remote.Port()
	}
	m.conns.remove(c.token)
	c.server = netip.AddrPortFrom(ev.Remote.Addr(), port)
	m.conns.add(c)
}

func (t turn) requested(ev SubflowRequested) {
	if s := t.asked(ev.LocalID); s != nil {
		s.local = ev.Local
		t.startsFrom(ev.Local)
	}
}

func (t turn) createFailed(ev CreateFailed) {
	switch s := t.asked(ev.LocalID); {
	case s == nil:
	case ev.HalfClosed: // says nothing about the route
		t.halfClosed = true
		t.remove(s)
	default:
		t.refused = ev.Gone
		t.end(ended{subflow: s, err: ev.Err, unsent: true, judge: t.now.Add(verdictDelay)})
	}
}

func (m *Manager) joined(t turn, ev SubflowEstablished) {
	if s := t.byAddrs(ev.Local, ev.Remote); s != nil && s.up {
		return
	}
	s := t.joining(ev.LocalID, ev.Local, ev.Remote)
	known := s != nil
	if !known && t.rule.RefuseJoins && t.managed() {
		t.out.do(DestroySubflow{Token: t.token, Local: ev.Local, Remote: ev.Remote})
		return
	}
	if !known {
		s = t.adopt(ev.LocalID, ev.Remote, t.now)
	}
	s.local = ev.Local
	t.startsFrom(ev.Local)
	s.cameUp(t.now)
	// Linux's event reports the peer's request, not ours.
	s.backup = s.backup || ev.Backup
	if known {
		m.woken = m.detours.trials.cameUp(s) || m.woken
		m.conns.watch(t.conn, t.now)
	} else {
		m.detours.recognise(t.conn)
	}
}

func (m *Manager) closed(t turn, ev SubflowClosed) {
	s := t.byAddrs(ev.Local, ev.Remote)
	if s == nil {
		s = t.joining(ev.LocalID, ev.Local, ev.Remote)
	}
	if s == nil {
		m.samples.explain(t.conn, ev)
		return
	}
	if !t.managed() { // its end is not judged, so nothing else counts it
		m.settle(t.conn, s, t.now)
	}
	t.end(ended{subflow: s, err: ev.cause(s), judge: t.now.Add(verdictDelay)})
}

// cause returns why s ended. A peer's report of changed data is believed only if s had carried data.
func (ev SubflowClosed) cause(s *subflow) error {
	if ev.Corrupt && s.up && s.carried() {
		return errReported
	}
	return ev.Err
}

// resync updates the known connections to those that exist.
func (m *Manager) resync(ev Resync, now time.Time) {
	m.forgetAccepted(ev.Accepted)
	seen := make(map[Token]bool, len(ev.Conns))
	for _, l := range ev.Conns {
		seen[l.Token] = true
		c := m.conns.byToken[l.Token]
		if c == nil {
			c = m.newConn(l.Token, l.Local, l.Remote, l.Cgroup, now)
			c.adopted = true
			m.conns.add(c)
		}
		t := m.turn(c, now)
		m.reconcile(t, l.Subflows)
		if c.adopted {
			t.restoreDirect()
		}
		m.detours.recognise(c)
		m.step(t)
	}
	for t, c := range m.conns.byToken {
		if !seen[t] {
			m.conns.remove(t)
			m.restrictions.end(t, &m.out)
			m.settleAll(c, now)
		}
	}
}

// reconcile updates a connection's subflows to those that the kernel lists. Joining subflows stay, because the kernel
// lists only established ones.
func (m *Manager) reconcile(t turn, live []LiveSubflow) {
	for _, s := range slices.Clone(t.subflows) {
		if s.up && !slices.ContainsFunc(live, func(l LiveSubflow) bool { return l.is(s) }) {
			t.end(ended{subflow: s, judge: t.now.Add(verdictDelay)})
		}
	}
	for _, l := range live {
		s := t.find(l.is)
		if s == nil {
			s = t.joining(l.LocalID, l.Local, l.Remote)
		}
		if s == nil {
			s = t.adopt(l.LocalID, l.Remote, t.now)
			t.lastID = max(t.lastID, l.LocalID)
			// An earlier agent, or this one, gave it full priority, so the server's first data had arrived.
			t.heard = t.heard || !s.direct && s.id != 0 && !l.Backup
		}
		if !s.up {
			s.cameUp(t.now)
			t.startsFrom(l.Local)
			m.woken = m.detours.trials.cameUp(s) || m.woken
		}
		s.local, s.backup = l.Local, l.Backup
	}
}

// restoreDirect makes the direct path of an adopted connection carry again, because an earlier agent may have set it
// aside. Apart from the first subflow, a direct one may in fact lead through a tunnel that is not known yet, which
// must not carry a TLS handshake.
func (t turn) restoreDirect() {
	for _, s := range t.subflows {
		if s.direct && s.up && s.backup && t.managed() && (s.id == 0 || t.open()) {
			t.setBackup(s, false)
		}
	}
}

func (l LiveSubflow) is(s *subflow) bool { return l.Local == s.local && l.Remote == s.remote }
