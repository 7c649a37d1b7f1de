package path

import (
	"net/netip"
	"slices"
	"time"
)

// What the kernel says about a connection's subflows, in the order of a
// subflow's life.

// verdictDelay is how long the end of a subflow is left unjudged: when a whole
// connection closes, its subflows may close first.
const verdictDelay = 250 * time.Millisecond

func (c *conn) requested(ev SubflowRequested) {
	if s := c.byID(ev.LocalID); s != nil && !s.up {
		s.local = ev.Local
	}
}

func (c *conn) createFailed(ev CreateFailed, now time.Time) {
	s := c.byID(ev.LocalID)
	if s == nil || s.up {
		return
	}
	c.refused = ev.Gone
	c.end(ended{subflow: s, err: ev.Err, unsent: true, judge: now.Add(verdictDelay)}, now)
}

func (m *Manager) joined(c *conn, ev SubflowEstablished, now time.Time) {
	if s := c.byAddrs(ev.Local, ev.Remote); s != nil && s.up {
		return
	}
	s := c.joining(ev.LocalID, ev.Local, ev.Remote)
	known := s != nil
	if !known {
		// The peer's, or one that an agent before us asked for.
		s = &subflow{id: ev.LocalID, remote: ev.Remote, direct: ev.Remote == c.server}
		c.subflows = append(c.subflows, s)
	}
	s.local, s.up, s.since, s.moved = ev.Local, true, now, now
	// Linux's event has what the peer asked for, not what we did.
	s.backup = s.backup || ev.Backup
	switch {
	case !known:
		m.recogniseAll(c)
	case s.detour != nil:
		m.cameUp(s.detour)
	}
}

func (c *conn) closed(ev SubflowClosed, now time.Time) {
	s := c.byAddrs(ev.Local, ev.Remote)
	if s == nil {
		s = c.joining(ev.LocalID, ev.Local, ev.Remote)
	}
	if s != nil {
		c.end(ended{subflow: s, err: ev.Err, judge: now.Add(verdictDelay)}, now)
	}
}

// announced: a server that denies joins to its first address may be joined at
// one it announced instead.
func (m *Manager) announced(c *conn, ev AddrAnnounced) {
	if !c.denied() || c.server.Addr().Is4() != ev.Remote.Addr().Is4() || m.excludes(ev.Remote.Addr()) {
		return
	}
	port := ev.Remote.Port()
	if port == 0 {
		port = c.remote.Port()
	}
	m.forget(c.token)
	c.server = netip.AddrPortFrom(ev.Remote.Addr(), port)
	m.track(c)
}

// takeBack ends subflows that are up. The peer is told over another one, or it
// would keep a dead one's place taken. All are ended before any is told of: the
// word of one must not travel, and be lost, on another.
func (m *Manager) takeBack(c *conn, gone ...*subflow) {
	for _, s := range gone {
		m.do(DestroySubflow{c.token, s.local, s.remote})
		c.remove(s)
	}
	for _, s := range gone {
		if s.id != 0 && c.ownsID(s) {
			m.do(RemoveAddr{c.token, s.id, s.local})
		}
	}
}

// judge: a subflow ended and its connection lives on, so its route failed.
func (m *Manager) judge(c *conn, now time.Time) {
	c.ended = slices.DeleteFunc(c.ended, func(e ended) bool {
		if now.Before(e.judge) {
			return false
		}
		if e.id != 0 && c.ownsID(e.subflow) {
			m.do(RemoveAddr{Token: c.token, LocalID: e.id}) // or Linux would not let us use the id again
		}
		switch {
		case e.direct:
			c.direct.failed(e.err, e.lived, now)
		case e.detour != nil:
			m.failed(e.detour, c.server, e.err, e.lived, now)
			m.learn(e, c.server, now)
		}
		return true
	})
}
