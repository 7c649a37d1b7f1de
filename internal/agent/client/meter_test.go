package client

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// A round has a sample of each subflow that was there, and its rates since the round before.
func TestMeterRounds(t *testing.T) {
	start := time.Now()
	var m meter
	counted := func(local string, bytes uint64) *mptcp.Subflow {
		s := &mptcp.Subflow{Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort("192.0.2.1:80")}
		s.Metrics.BytesReceived, s.Metrics.BytesAcked = bytes, 2*bytes
		return s
	}
	round := func(at time.Time, subflows ...*mptcp.Subflow) {
		m.begin(at)
		for _, s := range subflows {
			m.take(s)
		}
		m.end()
	}
	round(start, counted("10.0.0.1:1000", 1000), counted("10.0.0.1:1001", 1000))
	second := start.Add(time.Second)
	round(second, counted("10.0.0.1:1001", 2000))
	if len(m.samples) != 1 || m.samples[0].BytesReceived != 2000 || m.rates.Len() != 1 {
		t.Errorf("samples %+v and %d readings are left of one subflow", m.samples, m.rates.Len())
	}
	if send, receive := m.ratesOf(counted("10.0.0.1:1001", 3000), second.Add(time.Second)); receive != 8000 || send != 16000 {
		t.Errorf("%v and %v bit/s, want 16000 and 8000", send, receive)
	}
}
