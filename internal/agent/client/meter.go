package client

import (
	"maps"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// rateOver is the least time over which a rate is taken.
const rateOver = 500 * time.Millisecond

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

// begin starts a round.
func (m *meter) begin(now time.Time) {
	if m.last == nil {
		m.last = make(map[subflowKey]reading)
	}
	m.round++
	m.at, m.before = now, m.at
	m.samples = m.samples[:0]
}

// take reads one subflow.
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

// rates returns payload bits per second since the last reading that is not too
// fresh for a rate.
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
