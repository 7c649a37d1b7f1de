package path

import (
	"net/netip"
	"slices"
	"time"
)

// A subflow that this host ends while the peer cannot notice, because its address is gone or
// nothing arrives, keeps taking one of the server's few places. The peer is notified by
// REMOVE_ADDR, which Linux sends once, over one of the established subflows, without any
// retransmission (docs/kernel-behaviour.md). Therefore:
//
//   - REMOVE_ADDR is sent only when every established subflow has proven to stay.
//     A server without a free place lets a subflow come up and closes it a round
//     trip later, and a REMOVE_ADDR on it would be lost.
//   - Only one is sent at a time, and joins follow after a pause: a Linux server
//     drops one that arrives before it has processed the last.
//   - It is repeated when a subflow that may have carried it ends or loses its
//     address without any data received since. It is also repeated up to maxRepeats
//     times when the server still has no place.
//   - It is forgotten when a subflow that came up after it has stayed.
//   - If the server has no place, neither path nor waypoint is at fault, and the
//     connection opens nothing for a while. A place may become free without a
//     REMOVE_ADDR: a waypoint resets connections from an address that its member
//     has left.

// maxRepeats bounds the repetitions towards a server that may simply accept no more subflows.
const maxRepeats = 2

// removeAddrGap is a generous bound on the time a server needs to process a REMOVE_ADDR. It depends on
// the server's scheduler, not on the network.
const removeAddrGap = 50 * time.Millisecond

// lostAddr is the source address of a subflow that the peer may not know to be gone.
type lostAddr struct {
	id    uint8
	local netip.AddrPort
	sent  time.Time // when REMOVE_ADDR was sent; zero: not yet, or perhaps in vain
	again int       // repetitions because the server had no place
}

// stays returns the time after which an established subflow is known to stay. A surplus subflow is
// closed within a round trip. The join took at least one, and if it took a second or more, the SYN
// was perhaps repeated (RFC 6298, section 2).
func (s *subflow) stays() time.Duration { return max(verdictDelay, 2*min(s.took, time.Second)) }

// carried reports whether payload was transferred. Linux counts the SYN as one acknowledged byte.
func (s *subflow) carried() bool { return s.received > 0 || s.acked > 1 }

// stayed reports whether the subflow is known not to be surplus.
func (s *subflow) stayed(now time.Time) bool {
	return s.up && (s.carried() || now.Sub(s.since) >= s.stays())
}

// full reports whether the server closed the subflow because it accepts no more.
func (e *ended) full() bool {
	return e.up && e.err == nil && e.id != 0 && (e.direct || e.detour != nil) && !e.carried() && e.lived < e.stays()
}

// owesRemoveAddr records an address for which the peer needs a REMOVE_ADDR.
func (c *conn) owesRemoveAddr(s *subflow) {
	c.lost = append(c.lost, lostAddr{id: s.id, local: s.local})
}

// doubt handles a subflow that ended or lost its address and may have carried REMOVE_ADDRs that did
// not arrive. Data within a round trip after one does not show that it arrived.
func (c *conn) doubt(s *subflow) {
	for i := range c.lost {
		l := &c.lost[i]
		if s.up && !s.since.After(l.sent) && s.moved.Before(l.sent.Add(s.stays())) {
			l.sent = time.Time{}
		}
	}
}

// repeatRemoveAddrs repeats REMOVE_ADDRs because the server has no place, perhaps because one was lost.
func (c *conn) repeatRemoveAddrs() {
	c.lost = slices.DeleteFunc(c.lost, func(l lostAddr) bool { return !l.sent.IsZero() && l.again == maxRepeats })
	for i := range c.lost {
		if l := &c.lost[i]; !l.sent.IsZero() {
			l.sent = time.Time{}
			l.again++
		}
	}
}

// removeAddrPending reports whether a REMOVE_ADDR remains to be sent.
func (c *conn) removeAddrPending() bool {
	return slices.ContainsFunc(c.lost, func(l lostAddr) bool { return l.sent.IsZero() })
}

// settling reports whether the connection waits to see if a subflow stays, over which a REMOVE_ADDR
// is to be sent. Until then the server has no place for more.
func (m *Manager) settling(c *conn, now time.Time) bool {
	return (c.removeAddrPending() || c.has(func(s *subflow) bool { return !m.hasSource(s) })) &&
		c.has(func(s *subflow) bool { return s.up && m.hasSource(s) && !s.stayed(now) })
}

// canAnnounceRemoval reports whether a REMOVE_ADDR would be sent over a subflow that stays.
func (m *Manager) canAnnounceRemoval(c *conn, now time.Time) bool {
	alive := func(s *subflow) bool { return s.up && m.hasSource(s) }
	return c.has(alive) && !c.has(func(s *subflow) bool { return alive(s) && !s.stayed(now) })
}

// announcingRemoval reports whether a REMOVE_ADDR can be sent now or was sent just before.
func (m *Manager) announcingRemoval(c *conn, now time.Time) bool {
	can := len(c.lost) > 0 && m.canAnnounceRemoval(c, now)
	return slices.ContainsFunc(c.lost, func(l lostAddr) bool {
		return l.sent.IsZero() && can || now.Sub(l.sent) < removeAddrGap
	})
}

// takeBack ends subflows and announces that with REMOVE_ADDR. All end before the first is sent,
// because otherwise the REMOVE_ADDR of one could be sent, and lost, on another.
func (m *Manager) takeBack(c *conn, now time.Time, gone ...*subflow) {
	for _, s := range gone {
		m.do(DestroySubflow{Token: c.token, Local: s.local, Remote: s.remote, Orphan: !m.hasSource(s)})
		c.remove(s)
		c.doubt(s)
		c.dropped = now
	}
	for _, s := range gone {
		if s.id != 0 && c.ownsID(s) {
			c.owesRemoveAddr(s)
		}
	}
}

// dropOrphans removes subflows whose local address is gone, once a REMOVE_ADDR can be sent.
func (m *Manager) dropOrphans(c *conn, now time.Time) {
	if !m.canAnnounceRemoval(c, now) {
		return
	}
	var orphans []*subflow
	for _, s := range c.subflows {
		if !m.hasSource(s) {
			orphans = append(orphans, s)
		}
	}
	m.takeBack(c, now, orphans...)
}

// sendRemoveAddr sends one of the outstanding REMOVE_ADDRs, if that is possible.
func (m *Manager) sendRemoveAddr(c *conn, now time.Time) {
	if len(c.lost) == 0 || !m.canAnnounceRemoval(c, now) {
		return
	}
	c.lost = slices.DeleteFunc(c.lost, func(l lostAddr) bool {
		return !l.sent.IsZero() && c.has(func(s *subflow) bool { return s.since.After(l.sent) && s.stayed(now) })
	})
	i := slices.IndexFunc(c.lost, func(l lostAddr) bool { return l.sent.IsZero() })
	if i < 0 || now.Sub(c.lastRemoveAddr) < removeAddrGap {
		return
	}
	l := &c.lost[i]
	if l.again == 0 { // which frees a place
		c.room = retry{}
	}
	l.sent, c.lastRemoveAddr = now, now
	m.do(RemoveAddr{c.token, l.id, l.local})
}
