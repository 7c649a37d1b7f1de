package path

import (
	"net/netip"
	"slices"
	"time"
)

// What this host ends while the peer cannot know, because its address is gone or
// nothing comes through, goes on taking one of the server's few places. The
// peer is told by REMOVE_ADDR, which Linux sends once, over one of the subflows
// that are up, whatever becomes of it (docs/kernel-behaviour.md). So the law:
//
//   - It goes only when every subflow that is up has stayed. A server with no
//     place left lets one come up and closes it a round trip later; the word
//     would be lost with it.
//   - One goes at a time, and joins follow after a while: a Linux server drops one
//     that comes before it has dealt with the last.
//   - It goes again when a subflow that may have carried it ends, or its address
//     goes, without a sign of life after, and tellAgain times when the server still
//     has no place.
//   - It is forgotten when a subflow that came up after it has stayed.
//   - Where the server has no place, neither path nor waypoint is to blame, and
//     the connection opens nothing for a while. A place may become free without a
//     word: a waypoint resets what came from an address that its member has left.

// tellAgain bounds repetitions for a server that may simply take no more.
const tellAgain = 2

// wordGap is how long a server may take to deal with a word, generously. That is
// work for its scheduler, not for the network.
const wordGap = 50 * time.Millisecond

// lostAddr is where a subflow started that the peer may not know to be gone.
type lostAddr struct {
	id    uint8
	local netip.AddrPort
	told  time.Time // zero: not at all, or perhaps in vain
	again int       // told again as the server had no place
}

// stays is how long after it came up a subflow is known to stay. What is too
// much is closed within a round trip; coming up took at least one, and where it
// took a second or more the SYN was perhaps repeated (RFC 6298, section 2).
func (s *subflow) stays() time.Duration { return max(verdictDelay, 2*min(s.took, time.Second)) }

// carried: payload went over it. Linux counts the SYN as acknowledged payload.
func (s *subflow) carried() bool { return s.received > 0 || s.acked > 1 }

// stayed: it is no subflow too many.
func (s *subflow) stayed(now time.Time) bool {
	return s.up && (s.carried() || now.Sub(s.since) >= s.stays())
}

// full: the subflow was one too many for the server.
func (e *ended) full() bool {
	return e.up && e.err == nil && e.id != 0 && (e.direct || e.detour != nil) && !e.carried() && e.lived < e.stays()
}

// lose notes an address of which the peer is to be told.
func (c *conn) lose(s *subflow) {
	c.lost = append(c.lost, lostAddr{id: s.id, local: s.local})
}

// doubt: the subflow ended or its address is gone, and it may have had words on it
// that did not arrive.
// What moved within a round trip of a word is no sign that it did.
func (c *conn) doubt(s *subflow) {
	for i := range c.lost {
		l := &c.lost[i]
		if s.up && !s.since.After(l.told) && s.moved.Before(l.told.Add(s.stays())) {
			l.told = time.Time{}
		}
	}
}

// doubtAll: the server has no place, perhaps for want of a word.
func (c *conn) doubtAll() {
	c.lost = slices.DeleteFunc(c.lost, func(l lostAddr) bool { return !l.told.IsZero() && l.again == tellAgain })
	for i := range c.lost {
		if l := &c.lost[i]; !l.told.IsZero() {
			l.told = time.Time{}
			l.again++
		}
	}
}

// untold: there is an address of which the peer is to be told.
func (c *conn) untold() bool {
	return slices.ContainsFunc(c.lost, func(l lostAddr) bool { return l.told.IsZero() })
}

// settling: it is to be seen whether a subflow stays, over which the peer is to
// be told of others. Until then the server has no place for more.
func (m *Manager) settling(c *conn, now time.Time) bool {
	return (c.untold() || c.has(func(s *subflow) bool { return !m.here(s) })) &&
		c.has(func(s *subflow) bool { return s.up && m.here(s) && !s.stayed(now) })
}

// reaches: a word to the peer would go over a subflow that stays.
func (m *Manager) reaches(c *conn, now time.Time) bool {
	alive := func(s *subflow) bool { return s.up && m.here(s) }
	return c.has(alive) && !c.has(func(s *subflow) bool { return alive(s) && !s.stayed(now) })
}

// speaking: there is something to tell the peer, which can be told, or it has been
// told just now.
func (m *Manager) speaking(c *conn, now time.Time) bool {
	can := len(c.lost) > 0 && m.reaches(c, now)
	return slices.ContainsFunc(c.lost, func(l lostAddr) bool {
		return l.told.IsZero() && can || now.Sub(l.told) < wordGap
	})
}

// takeBack ends subflows of which the peer is to be told. All are ended before it
// is: the word of one must not travel, and be lost, on another.
func (m *Manager) takeBack(c *conn, now time.Time, gone ...*subflow) {
	for _, s := range gone {
		m.do(DestroySubflow{c.token, s.local, s.remote})
		c.remove(s)
		c.doubt(s)
		c.dropped = now
	}
	for _, s := range gone {
		if s.id != 0 && c.ownsID(s) {
			c.lose(s)
		}
	}
}

// dropOrphans takes back subflows whose local address is gone, once the peer can
// be told.
func (m *Manager) dropOrphans(c *conn, now time.Time) {
	if !m.reaches(c, now) {
		return
	}
	var orphans []*subflow
	for _, s := range c.subflows {
		if !m.here(s) {
			orphans = append(orphans, s)
		}
	}
	m.takeBack(c, now, orphans...)
}

// tellLost tells the peer of one address of those of which it is to be told, if it
// can be.
func (m *Manager) tellLost(c *conn, now time.Time) {
	if len(c.lost) == 0 || !m.reaches(c, now) {
		return
	}
	c.lost = slices.DeleteFunc(c.lost, func(l lostAddr) bool {
		return !l.told.IsZero() && c.has(func(s *subflow) bool { return s.since.After(l.told) && s.stayed(now) })
	})
	i := slices.IndexFunc(c.lost, func(l lostAddr) bool { return l.told.IsZero() })
	if i < 0 || now.Sub(c.spoke) < wordGap {
		return
	}
	l := &c.lost[i]
	if l.again == 0 { // it frees a place
		c.room = retry{}
	}
	l.told, c.spoke = now, now
	m.do(RemoveAddr{c.token, l.id, l.local})
}
