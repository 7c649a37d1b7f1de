package path

import (
	"errors"
	"time"
)

const (
	// stalledAfter is how long a subflow through a waypoint that no longer answers may make no
	// progress while its connection does.
	stalledAfter = 3 * time.Second
	// stalledBackoff is how often a subflow's retransmission timer may double (0.2 s, 0.4 s, … on a
	// short path) before the subflow is replaced.
	stalledBackoff = 5
	// waitsFor is how long sent data may wait for any answer. It is what stalledBackoff comes to on a
	// short path. Where the round trip was long just before, the timer alone would take much longer.
	waitsFor = 6 * time.Second
)

var errStalled = errors.New("made no progress while its connection did")

// measured processes counters. The server's first data opens the detours of a TLS connection, and
// stalled subflows are detected.
func (m *Manager) measured(ev Measured, now time.Time) {
	if ev.Complete {
		m.round++
		m.checksums.sampled(ev.ChecksumErrors)
		m.forgetVanished()
		defer m.lookForMissing(now)
	}
	for _, sm := range ev.Samples {
		c := m.conns[sm.Token]
		if c == nil || !c.managed() {
			continue
		}
		s := c.byAddrs(sm.Local, sm.Remote)
		if s == nil {
			continue
		}
		if ev.Complete {
			s.round, c.seen = m.round, now
		}
		if ev.Complete && s.detour != nil && sm.BytesReceived > s.received {
			m.arrivedIntact(s.detour, c.server, now)
		}
		carried := s.carried()
		if sm.BytesReceived != s.received || sm.BytesAcked != s.acked {
			s.received, s.acked, s.moved, c.moved = sm.BytesReceived, sm.BytesAcked, now, now
			m.watch(c, now)
		}
		s.take(&sm, now)
		settled := !carried && s.carried() || s.backoff != sm.Backoff && c.leaving()
		s.backoff = sm.Backoff
		// A backup may be a subflow through a tunnel that is not known yet.
		heard := s.direct && !s.backup && s.received > 0 && !c.open()
		c.heard = c.heard || heard
		stalled := m.stalled(c, s, sm.Backoff, now)
		if stalled {
			m.takeBack(c, now, s)
			if s.detour != nil {
				m.failed(s.detour, c.server, errStalled, s.since, now.Sub(s.since), now)
			}
		}
		if heard || stalled || settled {
			m.step(c, now)
		}
	}
	for _, r := range ev.Received {
		if c := m.conns[r.Token]; c != nil && c.managed() {
			c.arrived(r.UpTo, now)
			m.suspect(c, now)
		}
	}
}

// stalled reports whether the subflow makes no progress while another does, and has data to
// transfer. Signs of the latter are unanswered retransmissions, data that has no answer for long and,
// for a receiver, a waypoint that no longer answers.
func (m *Manager) stalled(c *conn, s *subflow, backoff int, now time.Time) bool {
	if s.direct || !s.up {
		return false
	}
	still := s.moved
	switch {
	case backoff >= stalledBackoff:
	case s.waitsTooLong():
		still = s.waiting.Add(waitsFor / 2) // else this host itself may be cut off
	default:
		if s.detour == nil {
			return false
		}
		lost, ok := m.lost[s.detour.via()]
		if !ok {
			return false
		}
		if still.Before(lost) {
			still = lost
		}
		if now.Sub(still) < stalledAfter {
			return false
		}
	}
	return c.has(func(x *subflow) bool { return x != s && x.up && x.moved.After(still) })
}

func (s *senses) waitsTooLong() bool { return !s.waiting.IsZero() && s.at.Sub(s.waiting) >= waitsFor }
