package path

import (
	"net/netip"
	"slices"
	"time"
)

// conn is one connection.
type conn struct {
	token         Token
	local, remote netip.AddrPort // of the first subflow
	server        netip.AddrPort // where further subflows lead: remote, or announced
	since         time.Time
	denyInitial   bool
	excluded      bool
	gone          bool // the kernel no longer knows it; its ConnClosed is on the way

	subflows []*subflow
	ended    []ended // not judged yet
	lastID   uint8

	tls       bool // detours wait for the server's first data
	heard     bool // which has come
	nextProbe time.Time

	short       bool // would take another detour
	asks        int
	nextAsk     time.Time
	directFails int
	directAfter time.Time

	due time.Time // the entry in deadlines; zero: none
}

// subflow is one of a connection's subflows, up or joining.
type subflow struct {
	id            uint8
	local, remote netip.AddrPort // local's port is 0 until the kernel chose it
	direct        bool
	detour        *offered // nil for the direct path, and for one not recognised
	backup        bool
	up            bool
	since         time.Time

	received, acked uint64
	moved           time.Time // when either last grew
}

// ended is a subflow that ended, before it is known whether its connection did.
type ended struct {
	*subflow
	lived time.Duration
	judge time.Time
}

func (c *conn) byID(id uint8) *subflow {
	for _, s := range c.subflows {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (c *conn) byAddrs(local, remote netip.AddrPort) *subflow {
	for _, s := range c.subflows {
		if s.local == local && s.remote == remote {
			return s
		}
	}
	return nil
}

func (c *conn) remove(s *subflow) {
	c.subflows = slices.DeleteFunc(c.subflows, func(x *subflow) bool { return x == s })
}

// newID returns an address id that no subflow of the connection uses, and as
// late as possible one that was used before: a REMOVE_ADDR for it may still be
// under way. Every subflow has an id of its own so that one can be taken back
// without the others.
func (c *conn) newID() uint8 {
	for {
		c.lastID++
		if c.lastID != 0 && c.byID(c.lastID) == nil {
			return c.lastID
		}
	}
}

func (c *conn) requested(ev SubflowRequested) {
	if s := c.byID(ev.LocalID); s != nil && !s.up {
		s.local = ev.Local
	}
}

// subflowClosed takes a subflow out and leaves the verdict for later.
func (c *conn) subflowClosed(ev SubflowClosed, now time.Time) {
	s := c.byAddrs(ev.Local, ev.Remote)
	if s == nil {
		// A join that was never told its port, or one that was given up.
		if s = c.byID(ev.LocalID); s == nil || s.up || s.remote != ev.Remote {
			return
		}
	}
	c.remove(s)
	c.end(s, now)
}

func (c *conn) end(s *subflow, now time.Time) {
	var lived time.Duration
	if s.up {
		lived = now.Sub(s.since)
	}
	c.ended = append(c.ended, ended{s, lived, now.Add(verdictDelay)})
}

// recognise ties a subflow that was there before the detour was known to it.
func (c *conn) recognise(o *offered) {
	remote, ok := o.target(c.server)
	if !ok {
		return
	}
	for _, s := range c.subflows {
		if !s.direct && s.detour == nil && s.remote == remote && (!o.Local.IsValid() || o.Local == s.local.Addr()) {
			s.detour = o
		}
	}
}

func (m *Manager) createFailed(c *conn, ev CreateFailed, now time.Time) {
	s := c.byID(ev.LocalID)
	if s == nil || s.up {
		return
	}
	c.remove(s)
	if ev.Gone {
		c.gone = true
		return
	}
	c.end(s, now)
}

func (m *Manager) joined(c *conn, ev SubflowEstablished, now time.Time) {
	s := c.byID(ev.LocalID)
	if s == nil || s.up {
		if c.byAddrs(ev.Local, ev.Remote) != nil {
			return
		}
		// Not of our making: the peer's join, or one that was given up and came after all.
		s = &subflow{id: ev.LocalID, direct: ev.Remote == c.server}
		c.subflows = append(c.subflows, s)
	}
	s.up, s.since, s.moved = true, now, now
	s.local, s.remote, s.backup = ev.Local, ev.Remote, ev.Backup
	if s.direct {
		c.directFails = 0
	}
	if c.heard {
		m.promote(c, s)
	}
}

// promote makes a subflow that joined as backup a full one.
func (m *Manager) promote(c *conn, s *subflow) {
	if s.up && s.backup && s.detour != nil {
		s.backup = false
		m.do(SetBackup{c.token, s.local, s.remote, false})
	}
}

// measured takes in counters: the server's first data opens the detours of a
// TLS connection, and a subflow that stands still is found out.
func (m *Manager) measured(samples []Sample, now time.Time) {
	for _, sm := range samples {
		c := m.conns[sm.Token]
		if c == nil {
			continue
		}
		s := c.byAddrs(sm.Local, sm.Remote)
		if s == nil {
			continue
		}
		if sm.BytesReceived != s.received || sm.BytesAcked != s.acked {
			s.received, s.acked, s.moved = sm.BytesReceived, sm.BytesAcked, now
		}
		if s.direct && sm.BytesReceived > 0 && !c.heard {
			c.heard = true
			for _, s := range c.subflows {
				m.promote(c, s)
			}
		}
		if c.stalled(s, sm.Backoff, now) {
			m.evict(c, s, now)
			m.step(c, now)
		}
	}
}

// stalled: the subflow's place would be better given to another detour.
func (c *conn) stalled(s *subflow, backoff int, now time.Time) bool {
	if s.direct || !s.up {
		return false
	}
	other := slices.ContainsFunc(c.subflows, func(x *subflow) bool { return x != s && x.up })
	if backoff >= stalledBackoff {
		return other
	}
	if s.detour == nil || s.detour.deadSince.IsZero() {
		return false
	}
	still := s.detour.deadSince
	if s.moved.After(still) {
		still = s.moved
	}
	return now.Sub(still) >= stalledAfter && slices.ContainsFunc(c.subflows, func(x *subflow) bool {
		return x != s && x.up && x.moved.After(still)
	})
}

// evict ends a subflow that does not work. The peer is told over another one,
// or it would keep the dead subflow's place taken.
func (m *Manager) evict(c *conn, s *subflow, now time.Time) {
	c.remove(s)
	m.do(RemoveAddr{c.token, s.id})
	m.do(DestroySubflow{c.token, s.local, s.remote})
	if s.detour != nil {
		m.failed(s.detour, c.server, 0, now)
	}
}
