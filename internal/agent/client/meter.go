package client

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// meter translates the kernel's counters of all subflows into samples, and keeps what rates need. With
// twenty thousand subflows it is most of what the agent would allocate, so it works in the same memory
// every time.
type meter struct {
	rates   measure.Rates[subflowKey]
	samples []path.Sample
}

type subflowKey struct{ local, remote netip.AddrPort }

// begin starts a round.
func (m *meter) begin(now time.Time) {
	m.rates.Begin(now)
	m.samples = m.samples[:0]
}

// take reads one subflow.
func (m *meter) take(s *mptcp.Subflow) {
	m.samples = append(m.samples, sampleOf(s))
	m.rates.Take(subflowKey{s.Local, s.Remote}, s.Metrics.BytesReceived, s.Metrics.BytesAcked)
}

// end ends the round.
func (m *meter) end() { m.rates.End() }

// ratesOf returns a subflow's payload bits per second now.
func (m *meter) ratesOf(s *mptcp.Subflow, now time.Time) (send, receive float64) {
	return m.rates.Of(subflowKey{s.Local, s.Remote}, s.Metrics.BytesReceived, s.Metrics.BytesAcked, now)
}
