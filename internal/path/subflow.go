package path

import (
	"errors"
	"net/netip"
	"slices"
	"time"
)

// This file handles the kernel's events about subflows, in the order of a subflow's life.

// verdictDelay is the time between the end of a subflow and its judgement. When a whole connection
// closes, its subflows may close first.
const verdictDelay = 250 * time.Millisecond

func (m *Manager) requested(c *conn, ev SubflowRequested) {
	if s := c.asked(ev.LocalID); s != nil {
		s.local = ev.Local
		m.startsFrom(ev.Local)
	}
}

func (m *Manager) createFailed(c *conn, ev CreateFailed, now time.Time) {
	s := c.asked(ev.LocalID)
	if s == nil {
		return
	}
	c.refused = ev.Gone
	m.end(c, ended{subflow: s, err: ev.Err, unsent: true, judge: now.Add(verdictDelay)}, now)
}

func (m *Manager) joined(c *conn, ev SubflowEstablished, now time.Time) {
	if s := c.byAddrs(ev.Local, ev.Remote); s != nil && s.up {
		return
	}
	s := c.joining(ev.LocalID, ev.Local, ev.Remote)
	known := s != nil
	if !known {
		// Created by the peer, or requested by an earlier agent.
		s = &subflow{id: ev.LocalID, remote: ev.Remote, direct: ev.Remote == c.server, since: now, foreign: true}
		c.subflows = append(c.subflows, s)
	}
	s.local = ev.Local
	m.startsFrom(ev.Local)
	s.cameUp(now)
	// Linux's event reports the peer's request, not ours.
	s.backup = s.backup || ev.Backup
	switch {
	case !known:
		m.recogniseAll(c)
	case s.detour != nil:
		m.cameUp(s.detour)
	}
}

func (s *subflow) cameUp(now time.Time) {
	s.up, s.took, s.since, s.moved = true, now.Sub(s.since), now, now
}

func (m *Manager) closed(c *conn, ev SubflowClosed, now time.Time) {
	s := c.byAddrs(ev.Local, ev.Remote)
	if s == nil {
		s = c.joining(ev.LocalID, ev.Local, ev.Remote)
	}
	if s == nil {
		m.explain(c, ev)
		return
	}
	m.end(c, ended{subflow: s, err: ev.cause(), judge: now.Add(verdictDelay)}, now)
}

func (ev SubflowClosed) cause() error {
	if ev.Corrupt {
		return errCorrupt
	}
	return ev.Err
}

// announced handles an address that the server announced. A server that denies joins to its first
// address may be joined there.
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

// judge records the failure of a route whose subflow ended while the connection lives on, unless
// there is another cause.
func (m *Manager) judge(c *conn, now time.Time) {
	c.ended = slices.DeleteFunc(c.ended, func(e ended) bool {
		if now.Before(e.judge) {
			return false
		}
		if m.corrupted(&e) {
			e.err = errCorrupt
		}
		orphan := e.up && !e.full() && (e.adrift || !m.hasSource(e.subflow))
		switch {
		case e.id == 0 || !c.ownsID(e.subflow):
		case orphan:
			c.owesRemoveAddr(e.subflow)
		default:
			m.do(RemoveAddr{Token: c.token, LocalID: e.id}) // otherwise Linux would not let us use the id again
			c.lastRemoveAddr = now
		}
		c.doubt(e.subflow)
		if e.full() {
			m.noteFull(c, &e, now)
			c.room.failed(nil, 0, now)
			c.repeatRemoveAddrs()
			return true
		}
		if e.up {
			c.room = retry{} // its place is free
		}
		switch {
		case orphan:
		case e.direct:
			c.direct.failed(e.err, e.lived, now)
		case e.detour != nil:
			m.failed(e.detour, c.server, e.err, e.since, e.lived, now)
			m.learn(e, c.server, now)
			if errors.Is(e.err, errCorrupt) {
				m.blame(e.detour, c.server, &corrupts, now)
			}
		}
		return true
	})
}
