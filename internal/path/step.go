package path

import (
	"errors"
	"net/netip"
	"slices"
	"time"
)

// joinTimeout is how long a SYN may go unanswered. The kernel itself would try
// for two minutes, in which another detour could have served.
const joinTimeout = 4 * time.Second

var errNoAnswer = errors.New("the join was not answered")

// step looks at one connection as it is now and does what is to be done. It
// stands at the end of every event, and is harmless to repeat.
func (m *Manager) step(c *conn, now time.Time) {
	if c.managed() {
		m.giveUpJoins(c, now)
		m.judge(c, now)
		m.promote(c)
		m.probeHandshake(c, now)
		m.dropOrphans(c)
		if len(c.ended) == 0 { // else the connection itself may be closing
			m.keepDirect(c, now)
			if !m.moving(c) {
				m.openDetours(c, now)
			}
		}
	}
	m.due.set(c, m.nextStep(c, now))
}

func (m *Manager) giveUpJoins(c *conn, now time.Time) {
	for _, s := range slices.Clone(c.subflows) {
		if !s.up && !now.Before(s.since.Add(joinTimeout)) {
			m.do(DestroySubflow{c.token, s.local, s.remote})
			c.end(s, errNoAnswer, now, now)
		}
	}
}

// promote makes subflows that joined as backup full ones.
func (m *Manager) promote(c *conn) {
	if !c.open() {
		return
	}
	for _, s := range c.subflows {
		if s.up && s.backup && s.detour != nil {
			s.backup = false
			m.do(SetBackup{c.token, s.local, s.remote, false})
		}
	}
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
	c.nextProbe = now.Add(min(max(now.Sub(c.since)/2, 4*time.Millisecond), 2*time.Second))
}

// waits: a detour of a TLS connection is up and may not be used yet.
func (c *conn) waits() bool {
	return !c.open() && c.has(func(s *subflow) bool { return s.up && s.backup && s.detour != nil }) &&
		c.has(func(s *subflow) bool { return s.up && s.direct })
}

// dropOrphans takes back subflows whose local address is gone, once another
// one is up over which the peer can be told.
func (m *Manager) dropOrphans(c *conn) {
	if !c.has(func(s *subflow) bool { return s.up && m.here(s) }) {
		return
	}
	var orphans []*subflow
	for _, s := range c.subflows {
		if !m.here(s) {
			orphans = append(orphans, s)
		}
	}
	m.takeBack(c, orphans...)
}

// keepDirect opens the direct path again when it is gone: it failed, or this
// host's address changed.
func (m *Manager) keepDirect(c *conn, now time.Time) {
	if c.denied() || now.Before(c.direct.at) || c.has(func(s *subflow) bool { return s.direct && m.here(s) }) {
		return
	}
	if from, ok := m.source(c); ok {
		m.create(c, nil, from, c.server, false, now)
	}
}

// moving: the host's address changed, and a new direct subflow is on its way. The
// server's few places are still taken by subflows from the old address, so
// detours leave the one that may be free to it; over it the others are given up.
func (m *Manager) moving(c *conn) bool {
	return c.has(func(s *subflow) bool { return s.direct && !s.up }) && c.has(func(s *subflow) bool { return !m.here(s) })
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
	return from, slices.ContainsFunc(m.addrs, func(a netip.Addr) bool { return a.Is4() == c.server.Addr().Is4() })
}

// openDetours lets the policy choose, and asks for more: also where detours are
// already known, so that spares are at hand when one fails.
func (m *Manager) openDetours(c *conn, now time.Time) {
	from, ok := m.source(c)
	if !ok || c.denied() {
		c.short = false
		return
	}
	plan := m.cfg.Policy.Plan(m.view(c, now))
	for _, d := range plan.Open {
		o := m.detours[d.ID]
		remote, _ := o.target(c.server)
		local := from
		if o.Local.IsValid() {
			local = o.Local
		}
		m.create(c, &o.Detour, local, remote, !c.open(), now)
	}
	c.short = plan.Short
	if (c.wants() || len(plan.Open) > 0) && !now.Before(c.ask.at) {
		c.ask.failed(nil, 0, now)
		m.do(RequestDetours{c.server})
	}
}

// wants: the connection has a use for detours that are not known yet. Besides
// one that is short of them that is one with a subflow of before the agent's
// restart: it is known for what it is only when its detour is on offer again.
func (c *conn) wants() bool {
	return c.short || c.has(func(s *subflow) bool { return !s.direct && s.detour == nil && s.id != 0 })
}

// view is what the policy sees. It is made in buffers that the next one uses again.
func (m *Manager) view(c *conn, now time.Time) View {
	v := View{InUse: m.inUse[:0], Usable: m.usable[:0]}
	for _, s := range c.subflows {
		if !m.here(s) {
			continue
		}
		u := InUse{Direct: s.direct}
		if s.detour != nil {
			u.Kind, u.Waypoint = s.detour.Kind, s.detour.Waypoint
		}
		v.InUse = append(v.InUse, u)
	}
	for o := range m.leading(c.server) {
		if !now.Before(m.retryAt(&o.Detour, c.server)) && m.couldTake(c, &o.Detour) {
			v.Usable = append(v.Usable, Usable{o.Detour, o.since})
		}
	}
	m.inUse, m.usable = v.InUse, v.Usable
	return v
}

// couldTake: d leads to the server, on a way that none of the subflows takes.
func (m *Manager) couldTake(c *conn, d *Detour) bool {
	remote, ok := d.target(c.server)
	return ok && (!d.Local.IsValid() || m.owns(d.Local)) && !c.has(func(s *subflow) bool {
		return m.here(s) && (s.detour != nil && s.detour.ID == d.ID ||
			s.remote == remote && (!d.Local.IsValid() || d.Local == s.local.Addr()))
	})
}

func (m *Manager) create(c *conn, d *Detour, local netip.Addr, remote netip.AddrPort, backup bool, now time.Time) {
	id, ok := c.newID()
	if !ok {
		return
	}
	c.subflows = append(c.subflows, &subflow{
		id: id, direct: d == nil, detour: d, backup: backup, since: now,
		local: netip.AddrPortFrom(local, 0), remote: remote,
	})
	m.do(CreateSubflow{c.token, id, local, remote, backup})
}

// nextStep is the next moment at which step would do something if nothing
// happened until then; zero: there is none.
func (m *Manager) nextStep(c *conn, now time.Time) (next time.Time) {
	at := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if !c.managed() {
		return next
	}
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
	at(c.direct.at)
	if c.wants() {
		at(c.ask.at)
		for o := range m.leading(c.server) {
			at(m.retryAt(&o.Detour, c.server))
		}
	}
	return next
}
