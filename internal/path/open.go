package path

import (
	"net/netip"
	"time"
)

// This file opens the detours of a connection: it builds the policy's view and carries out its
// plan.

// openDetours lets the policy choose detours, and requests more if needed.
func (m *Manager) openDetours(c *conn, now time.Time) {
	from, ok := m.source(c)
	if !ok || c.denied() {
		c.short = false
		return
	}
	plan := m.plan(c, m.view(c, now), now)
	for _, choice := range plan.Open {
		o := m.detours[choice.ID]
		remote, _ := o.target(c.server)
		local := from
		if o.Local.IsValid() {
			local = o.Local
		}
		m.create(c, &subflow{
			detour: &o.Detour, why: choice.Why, chosen: true, try: o.trial != nil && !o.trial.proven, backup: !c.open(),
			local: netip.AddrPortFrom(local, 0), remote: remote,
		}, now)
		if o.trial != nil && !o.trial.proven {
			o.trial.begin(c.server, now)
		}
	}
	m.askingForMore(c, now)
	c.capped = plan.Capped
	c.short, c.asks = plan.Short, plan.Short && plan.Ask
	if (plan.Ask || c.wants()) && !now.Before(c.ask.at) {
		c.ask.failed(nil, 0, now)
		m.do(RequestDetours{c.server})
	}
}

// wants reports whether the connection could use mappings that are not known yet. It could if it is
// short of detours. It also could if it has a subflow from before the agent's restart, which is
// recognised only when its detour is on offer again.
func (c *conn) wants() bool {
	return c.asks || c.has(func(s *subflow) bool { return !s.direct && s.detour == nil && s.id != 0 })
}

// view returns the policy's view of the connection. Its slices are reused by the next call.
func (m *Manager) view(c *conn, now time.Time) View {
	v := View{InUse: m.inUse[:0], Usable: m.usable[:0], Resting: m.resting[:0]}
	for _, s := range c.subflows {
		if !m.hasSource(s) || s.leaving {
			continue
		}
		u := InUse{Direct: s.direct}
		if s.detour != nil {
			u.Kind, u.Waypoint = s.detour.Kind, s.detour.Waypoint
		}
		v.InUse = append(v.InUse, u)
	}
	m.countFailures(c.server, now)
	for o := range m.leading(c.server) {
		remote, ok := o.target(c.server)
		if !ok || m.taken(c, &o.Detour, remote) {
			continue
		}
		if until, why := m.rests(c, o, now); now.Before(until) || why.Cause == RestsNoAddress {
			v.Resting = append(v.Resting, Resting{o.Kind, o.Waypoint, why})
		} else {
			v.Usable = append(v.Usable, Usable{&o.Detour, o.since, o.trial != nil && !o.trial.proven, m.failures[o.Waypoint]})
		}
	}
	v.Resting = append(v.Resting, m.unready...)
	m.inUse, m.usable, m.resting = v.InUse, v.Usable, v.Resting
	return v
}

// taken reports whether a subflow already uses the route that d would use to remote.
func (m *Manager) taken(c *conn, d *Detour, remote netip.AddrPort) bool {
	return c.has(func(s *subflow) bool {
		return m.hasSource(s) && !s.leaving && (s.detour != nil && s.detour.ID == d.ID ||
			s.remote == remote && (!d.Local.IsValid() || d.Local == s.local.Addr()))
	})
}

// rests returns until when the connection does not use a detour, and why.
func (m *Manager) rests(c *conn, o *offered, now time.Time) (until time.Time, why Rest) {
	if o.Local.IsValid() && !m.owns(o.Local) {
		return until, Rest{Cause: RestsNoAddress}
	}
	for _, e := range c.ended {
		if e.detour != nil && e.detour.ID == o.ID {
			return e.judge, Rest{Cause: RestsFailed, Err: e.err}
		}
	}
	if o.trial != nil {
		until, why = o.trial.restsUntil(c.server, now)
	}
	if len(m.retries) > 0 {
		if r := m.retries[route{o.ID, c.server}]; r.at.After(until) {
			until, why = r.at, Rest{Cause: RestsFailed, Err: r.err}
		}
	}
	if b, ok := m.blameOf(&o.Detour, c.server, now); ok && b.until.After(until) {
		until, why = b.until, Rest{Cause: RestsBlamed, Since: b.since, Err: b.fault.err}
	}
	return until, why
}

func (m *Manager) create(c *conn, s *subflow, now time.Time) {
	id, ok := c.newID()
	if !ok {
		return
	}
	s.id, s.since, s.network = id, now, m.network
	c.subflows = append(c.subflows, s)
	a := CreateSubflow{
		Token: c.token, LocalID: id, Local: s.local.Addr(), Remote: s.remote, Backup: s.backup,
		Direct: s.direct, Server: c.server,
	}
	if s.detour != nil {
		a.Kind, a.Waypoint = s.detour.Kind, s.detour.Waypoint
	}
	m.do(a)
}
