package path

import (
	"errors"
	"net/netip"
	"time"
)

const (
	// stalledAfter is the time without progress after which a subflow is given up, if its waypoint no longer answers
	// and its connection makes progress.
	stalledAfter = 3 * time.Second
	// stalledBackoff is the number of doublings of a subflow's retransmission timer (0.2 s, 0.4 s, ... on a short
	// path) at which it is given up.
	stalledBackoff = 5
	// waitsFor is the time for which sent data may have no answer at all. On a short path stalledBackoff takes as
	// long. Where the round trip was long just before, the timer alone would take much longer.
	waitsFor = 6 * time.Second
)

var errStalled = errors.New("made no progress while its connection did")

// Ends holds the addresses of a subflow.
type Ends struct{ Local, Remote netip.AddrPort }

// measured processes samples. It counts what all connections carry. For those that it manages, it opens the detours of
// TLS connections after the server's first data, and detects stalled, silent and missing subflows.
func (m *Manager) measured(ev Measured, now time.Time) {
	if ev.Complete && !ev.Continues {
		m.samples.begin(ev.ChecksumErrors, now)
	}
	for i := range ev.Samples {
		sm := &ev.Samples[i]
		c := m.conns.byToken[sm.Token]
		if c == nil {
			continue
		}
		if ev.Complete {
			c.seen = now
		}
		switch s := c.byAddrs(sm.Local, sm.Remote); {
		case s == nil:
		case c.managed():
			m.sampled(m.turn(c, now), s, sm, ev.Complete)
		default:
			t := m.turn(c, now)
			received, acked, _ := m.observe(t, s, sm, ev.Complete)
			s.take(sm, now, received, acked, true)
		}
	}
	for _, r := range ev.Progress {
		if c := m.conns.byToken[r.Token]; c != nil && c.managed() {
			c.progressed(r, now)
			t := m.turn(c, now)
			m.endHoles(t)
			if !c.slotless {
				if m.weighing(t).weigh() {
					m.step(t)
				}
				m.lookSoon(t)
			}
			m.arrange(t)
		}
	}
	if ev.More {
		return
	}
	m.boundBulk(now)
	if ev.Complete {
		m.lookForMissing(now)
		m.lookForEnded(now)
		m.tendSlotless(now)
		m.start(now)
	}
}

// observe records the counters of one subflow for display and for the totals. It decides nothing, and is the only use of
// samples of connections that this manager may not act on. It returns the payload since the last sample, and whether that
// counts: an earlier agent counted what was there before.
func (m *Manager) observe(t turn, s *subflow, sm *Sample, complete bool) (received, acked uint64, counts bool) {
	arrived := max(s.acked, sm.BytesAcked+sm.BytesSacked) // BytesSacked is an estimate, which may fall
	received, acked = sm.BytesReceived-s.received, arrived-s.acked
	if received != 0 || acked != 0 {
		s.received, s.acked, s.moved, t.moved = sm.BytesReceived, arrived, t.now, t.now
	}
	if counts = t.counts(s); counts {
		if by, known := m.accountOf(t.conn, s); known {
			m.count(by, received, acked)
		}
		s.flow.add(received, acked)
	}
	if complete {
		s.sampled = m.samples.last
		s.flow.settle(t.now.Sub(later(s.since, m.samples.before)))
	}
	return received, acked, counts
}

// sampled processes the counters of one subflow.
func (m *Manager) sampled(t turn, s *subflow, sm *Sample, complete bool) {
	carried := s.carried()
	arrived, idle := sm.DataSegsIn != s.dataSegments, t.isIdle()
	received, acked, counts := m.observe(t, s, sm, complete)
	if s.detour != nil && s.carried() && (received != 0 || acked != 0) {
		m.woken = m.detours.gotThrough(t, s, received != 0 && complete) || m.woken
	}
	if s.backup && (arrived || acked != 0) {
		t.tellDemotion(s)
	}
	if received != 0 || acked != 0 {
		m.conns.watch(t.conn, t.now)
	}
	t.tellPriorityAgain(s)
	if counts {
		t.carried += received + acked
		m.spend(t, s, received+acked)
		if s.explores(t.now) {
			m.detours.exploration.carried(received+acked, t.now)
		}
	}
	if complete {
		t.keepPace(s)
	}
	s.hear(sm)
	s.take(sm, t.now, received, acked, !t.slotless)
	t.keepKnown(s)
	far := m.weighing(t).leaveFarBehind(s)
	if s.setsOut(t.now) {
		m.conns.watch(t.conn, t.now)
	}
	settled := !carried && s.carried() || idle && !t.isIdle() && t.isShort() ||
		s.backoff != clip(sm.Backoff) && (t.leaving() || t.rule.acts() || t.isShort()) || t.toRefresh(s) || s.standby && t.rule.restricts()
	s.backoff = clip(sm.Backoff)
	// s must not be a backup, which may be a subflow through a tunnel that is not known yet.
	heard := s.direct && !s.backup && s.received > 0 && !t.open()
	t.heard = t.heard || heard
	stalled := t.stalled(s, m.detours.lost)
	if stalled {
		m.weighing(t).giveUp(errStalled, s)
		if s.detour != nil && s.silent() >= stalledAfter {
			m.countSilence(s.detour, t.server, s.since, t.now)
		}
	}
	if heard || stalled || settled || far {
		m.step(t)
	}
}

// stalled reports whether the subflow has data to transfer and makes no progress while another does. Unanswered
// retransmissions and data without an answer show that it has data. For a receiver, a waypoint that no longer answers
// is taken as a sign.
func (t turn) stalled(s *subflow, lost map[via]time.Time) bool {
	if s.direct || !s.up {
		return false
	}
	still := s.moved
	switch {
	case s.backoff >= stalledBackoff:
	case s.waitsTooLong():
		still = s.waiting.Add(waitsFor / 2) // else this host itself may be cut off
	default:
		if s.detour == nil {
			return false
		}
		since, ok := lost[viaOf(s.detour)]
		if !ok {
			return false
		}
		if still.Before(since) {
			still = since
		}
		if t.now.Sub(still) < stalledAfter {
			return false
		}
	}
	return t.has(func(x *subflow) bool { return x != s && x.up && x.moved.After(still) })
}

func (s *senses) waitsTooLong() bool { return !s.waiting.IsZero() && s.at.Sub(s.waiting) >= waitsFor }
