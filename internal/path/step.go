package path

import (
	"net/netip"
	"slices"
	"time"
)

// step looks at one connection as it is now and does what is to be done. It
// stands at the end of every event, and is harmless to repeat.
func (m *Manager) step(c *conn, now time.Time) {
	if !c.excluded && !c.gone {
		m.judge(c, now)
		m.giveUpJoins(c, now)
		m.probeHandshake(c, now)
		m.keepDirect(c, now)
		m.dropOrphans(c)
		m.openDetours(c, now)
	}
	m.schedule(c, now)
}

// judge: a subflow ended and its connection lives on, so the route failed.
func (m *Manager) judge(c *conn, now time.Time) {
	c.ended = slices.DeleteFunc(c.ended, func(e ended) bool {
		if now.Before(e.judge) {
			return false
		}
		switch {
		case e.direct:
			c.directFails++
			c.directAfter = now.Add(backoff(c.directFails))
		case e.detour != nil:
			m.failed(e.detour, c.server, e.lived, now)
		}
		return true
	})
}

func (m *Manager) giveUpJoins(c *conn, now time.Time) {
	for _, s := range slices.Clone(c.subflows) {
		if s.up || now.Before(s.since.Add(joinTimeout)) {
			continue
		}
		c.remove(s)
		m.do(DestroySubflow{c.token, s.local, s.remote})
		c.ended = append(c.ended, ended{s, 0, now})
	}
	m.judge(c, now)
}

// probeHandshake asks, while a TLS connection's detours wait as backup, whether
// the server has been heard on the direct path: often at first, then ever less.
func (m *Manager) probeHandshake(c *conn, now time.Time) {
	if !c.waits() || now.Before(c.nextProbe) {
		return
	}
	for _, s := range c.subflows {
		if s.direct && s.up {
			m.do(Measure{c.token, s.local, s.remote})
		}
	}
	c.nextProbe = now.Add(min(max(now.Sub(c.since)/4, 4*time.Millisecond), 2*time.Second))
}

// waits: a detour of a TLS connection is up and may not be used yet.
func (c *conn) waits() bool {
	return c.tls && !c.heard && slices.ContainsFunc(c.subflows, func(s *subflow) bool {
		return s.up && s.backup && s.detour != nil
	})
}

// keepDirect opens the direct path again when it is gone: it failed, or this
// host's address changed.
func (m *Manager) keepDirect(c *conn, now time.Time) {
	if c.denyInitial && c.server == c.remote || now.Before(c.directAfter) ||
		slices.ContainsFunc(c.ended, func(e ended) bool { return e.direct }) {
		return
	}
	if slices.ContainsFunc(c.subflows, func(s *subflow) bool { return s.direct && m.here(s) }) {
		return
	}
	if from, ok := m.source(c); ok {
		m.create(c, nil, from, c.server, false, now)
	}
}

// here: the subflow starts from an address that this host still has. A tunnel's
// own address is its owner's business.
func (m *Manager) here(s *subflow) bool {
	return m.addrs == nil || s.detour != nil && s.detour.Local.IsValid() || slices.Contains(m.addrs, s.local.Addr())
}

// source is the address new subflows start from: the connection's own while
// this host has it.
func (m *Manager) source(c *conn) (netip.Addr, bool) {
	if m.addrs == nil || slices.Contains(m.addrs, c.local.Addr()) {
		return c.local.Addr(), true
	}
	for _, a := range m.addrs {
		if a.Is4() == c.server.Addr().Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// dropOrphans takes back subflows whose local address is gone, once another
// one is up over which the peer can be told.
func (m *Manager) dropOrphans(c *conn) {
	if !slices.ContainsFunc(c.subflows, func(s *subflow) bool { return s.up && m.here(s) }) {
		return
	}
	for _, s := range slices.Clone(c.subflows) {
		if !m.here(s) {
			c.remove(s)
			m.do(RemoveAddr{c.token, s.id})
			m.do(DestroySubflow{c.token, s.local, s.remote})
		}
	}
}

// openDetours lets the policy choose, and asks for more where that falls short.
func (m *Manager) openDetours(c *conn, now time.Time) {
	if c.denyInitial && c.server == c.remote {
		c.short = false
		return
	}
	from, ok := m.source(c)
	if !ok {
		return
	}
	plan := m.cfg.Policy.Plan(m.view(c, now))
	for _, d := range plan.Open {
		remote, _ := d.target(c.server)
		local := from
		if d.Local.IsValid() {
			local = d.Local
		}
		m.create(c, m.detours[d.ID], local, remote, c.tls && !c.heard, now)
	}
	c.short = plan.Short
	if c.asks == 0 || c.short && !now.Before(c.nextAsk) {
		c.asks++
		c.nextAsk = now.Add(backoff(c.asks))
		m.do(RequestDetours{c.server})
	}
}

func (m *Manager) view(c *conn, now time.Time) View {
	var v View
	for _, s := range c.subflows {
		u := InUse{Direct: s.direct}
		if s.detour != nil {
			u.Kind, u.Waypoint = s.detour.Kind, s.detour.Waypoint
		}
		if m.here(s) {
			v.InUse = append(v.InUse, u)
		}
	}
	for _, list := range [2][]*offered{m.general, m.specific[c.server]} {
		for _, o := range list {
			if m.usable(c, o, now) {
				v.Usable = append(v.Usable, Usable{o.Detour, o.since})
			}
		}
	}
	return v
}

func (m *Manager) usable(c *conn, o *offered, now time.Time) bool {
	remote, ok := o.target(c.server)
	if !ok || now.Before(m.records[route{o.ID, c.server}].until) {
		return false
	}
	taken := func(s *subflow) bool {
		return s.detour == o || !s.direct && s.remote == remote && !o.Local.IsValid()
	}
	return !slices.ContainsFunc(c.subflows, taken) &&
		!slices.ContainsFunc(c.ended, func(e ended) bool { return taken(e.subflow) })
}

func (m *Manager) create(c *conn, o *offered, local netip.Addr, remote netip.AddrPort, backup bool, now time.Time) {
	s := &subflow{
		id: c.newID(), direct: o == nil, detour: o, backup: backup, since: now,
		local: netip.AddrPortFrom(local, 0), remote: remote,
	}
	c.subflows = append(c.subflows, s)
	m.do(CreateSubflow{c.token, s.id, local, remote, backup})
}

// schedule finds the next moment at which step would do something.
func (m *Manager) schedule(c *conn, now time.Time) {
	var next time.Time
	at := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if !c.excluded && !c.gone {
		for _, e := range c.ended {
			at(e.judge)
		}
		for _, s := range c.subflows {
			if !s.up {
				at(s.since.Add(joinTimeout))
			}
		}
		if c.waits() {
			at(c.nextProbe)
		}
		at(c.directAfter)
		if c.short {
			at(c.nextAsk)
			for _, list := range [2][]*offered{m.general, m.specific[c.server]} {
				for _, o := range list {
					at(m.records[route{o.ID, c.server}].until)
				}
			}
		}
	}
	if !next.Equal(c.due) {
		if c.due = next; !next.IsZero() {
			m.due.add(c)
		}
	}
}
