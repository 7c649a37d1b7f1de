package path

import (
	"errors"
	"net/netip"
	"slices"
	"time"
)

// joinTimeout is how long a SYN may go unanswered. The kernel itself would try for two minutes, in
// which another detour could have been used.
const joinTimeout = 4 * time.Second

var (
	errNoAnswer  = errors.New("the join was not answered")
	errNotJoined = errors.New("the join was not accepted")
)

// step brings one connection up to date. It runs at the end of every event and may be repeated
// without harm.
func (m *Manager) step(c *conn, now time.Time) {
	if c.managed() {
		m.giveUpJoins(c, now)
		m.judge(c, now)
		m.promote(c)
		m.probeHandshake(c, now)
		if !c.closing() {
			m.dropOrphans(c, now)
			m.endLeaving(c, now)
			m.sendRemoveAddr(c, now)
			m.open(c, now)
		}
	}
	m.due.Set(&c.due, m.nextStep(c, now))
}

// open requests the subflows that the connection lacks, if the server may have a place for them.
func (m *Manager) open(c *conn, now time.Time) {
	if now.Before(c.room.at) || m.settling(c, now) || m.announcingRemoval(c, now) {
		return
	}
	m.keepDirect(c, now)
	if !m.moving(c) {
		m.openDetours(c, now)
	}
}

func (m *Manager) giveUpJoins(c *conn, now time.Time) {
	for _, s := range slices.Clone(c.subflows) {
		if !s.up && !now.Before(s.timeout()) {
			m.do(DestroySubflow{Token: c.token, Local: s.local, Remote: s.remote})
			m.end(c, ended{subflow: s, err: errNoAnswer, judge: now}, now)
		}
	}
}

// timeout returns when an unanswered join is aborted.
func (s *subflow) timeout() time.Time {
	if s.try {
		return s.since.Add(tryTimeout)
	}
	return s.since.Add(joinTimeout)
}

// promote turns subflows that joined as backup into full ones.
func (m *Manager) promote(c *conn) {
	if !c.open() {
		return
	}
	for _, s := range c.subflows {
		if s.up && s.backup && s.detour != nil && !s.suspicion.demoted {
			s.backup = false
			m.do(SetBackup{c.token, s.local, s.remote, false})
		}
	}
}

// probeHandshake requests samples of the direct path while a TLS connection's detours wait as
// backup, to learn whether the server's first data has arrived: often at first, then ever less.
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

// waits reports whether a detour of a TLS connection is up and may not be used yet.
func (c *conn) waits() bool {
	return !c.open() && c.has(func(s *subflow) bool { return s.up && s.backup && s.detour != nil && !s.suspicion.demoted }) &&
		c.has(func(s *subflow) bool { return s.up && s.direct })
}

// keepDirect reopens the direct path after it failed or this host's address changed.
func (m *Manager) keepDirect(c *conn, now time.Time) {
	if c.denied() || now.Before(c.direct.at) || c.has(func(s *subflow) bool { return s.direct && m.hasSource(s) }) {
		return
	}
	if from, ok := m.source(c); ok {
		m.create(c, &subflow{direct: true, local: netip.AddrPortFrom(from, 0), remote: c.server}, now)
	}
}

// nextStep returns the next time at which step has something to do without another event, or zero
// if there is none.
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
			at(s.timeout())
		}
	}
	if c.waits() {
		at(c.nextProbe)
	}
	if len(c.lost) > 0 || c.leaving() || m.settling(c, now) {
		for _, s := range c.subflows {
			at(s.since.Add(s.stays()))
		}
	}
	for _, l := range c.lost {
		at(l.sent.Add(removeAddrGap))
	}
	if c.removeAddrPending() {
		at(c.lastRemoveAddr.Add(removeAddrGap))
	}
	at(c.room.at)
	at(c.direct.at)
	if c.wants() {
		at(c.ask.at)
	}
	if c.capped {
		at(m.places[c.server.Addr()].until)
	}
	if c.short {
		for o := range m.leading(c.server) {
			until, _ := m.rests(c, o, now)
			at(until)
		}
	}
	return next
}
