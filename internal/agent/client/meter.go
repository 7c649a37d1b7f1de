package agent

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

const (
	sampleEvery = time.Second
	// sampleShare bounds the part of a core that sampling may take when there
	// are very many subflows: one in this many.
	sampleShare = 50
	// rateOver is the least time a rate is taken over.
	rateOver = 500 * time.Millisecond
)

// meter remembers the last two readings of every subflow, for rates. With
// twenty thousand subflows it is most of what the agent would allocate, so it
// works in the same memory every time.
type meter struct {
	round      uint64    // counts samplings
	at, before time.Time // of this round and the one before
	last       map[subflowKey]reading
	samples    []path.Sample
}

type subflowKey struct{ local, remote netip.AddrPort }

// reading is a subflow's counters in this round and, if it was there, in the
// one before.
type reading struct {
	round                       uint64 // in which it was last seen
	received, acked             uint64
	twice                       bool // seen in the round before, too
	receivedBefore, ackedBefore uint64
}

// begin is the start of a round.
func (m *meter) begin(now time.Time) {
	if m.last == nil {
		m.last = make(map[subflowKey]reading)
	}
	m.round++
	m.at, m.before = now, m.at
	m.samples = m.samples[:0]
}

// take takes in one subflow.
func (m *meter) take(s *mptcp.Subflow) {
	m.samples = append(m.samples, sampleOf(s))
	key := subflowKey{s.Local, s.Remote}
	old, known := m.last[key]
	m.last[key] = reading{
		round: m.round, received: s.Metrics.BytesReceived, acked: s.Metrics.BytesAcked,
		twice: known, receivedBefore: old.received, ackedBefore: old.acked,
	}
}

// end forgets the subflows that are gone.
func (m *meter) end() {
	maps.DeleteFunc(m.last, func(_ subflowKey, r reading) bool { return r.round != m.round })
}

// sample reads all subflows' counters, lets the path manager see them and says
// when to do so again.
func (c *client) sample(ctx context.Context, now time.Time) time.Duration {
	c.checkGuard()
	c.lookForOthers()
	c.meter.begin(now)
	failed := c.checksumErrors()
	err := c.kernel.Subflows(func(s *mptcp.Subflow) bool {
		if !s.ServerSide {
			c.meter.take(s)
		}
		return true
	})
	c.meter.end()
	if err != nil {
		c.log.Warn("subflows cannot be measured", "err", err)
		return sampleEvery
	}
	c.tell(ctx, now, path.Measured{Samples: c.meter.samples, Complete: true, ChecksumErrors: failed})
	return max(sampleEvery, sampleShare*time.Since(now))
}

// rates are payload bits per second since the last reading that is not too
// fresh to tell.
func (m *meter) rates(s *mptcp.Subflow, now time.Time) (send, receive float64) {
	r, ok := m.last[subflowKey{s.Local, s.Remote}]
	if !ok {
		return 0, 0
	}
	at, received, acked := m.at, r.received, r.acked
	if now.Sub(at) < rateOver && r.twice {
		at, received, acked = m.before, r.receivedBefore, r.ackedBefore
	}
	over := now.Sub(at).Seconds()
	if over <= 0 {
		return 0, 0
	}
	return 8 * float64(s.Metrics.BytesAcked-acked) / over, 8 * float64(s.Metrics.BytesReceived-received) / over
}
