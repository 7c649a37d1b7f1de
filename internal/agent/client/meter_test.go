package client

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

func counted(local string, bytes uint64) *mptcp.Subflow {
	s := &mptcp.Subflow{Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort("192.0.2.1:80")}
	s.Metrics.BytesReceived, s.Metrics.BytesAcked = bytes, 2*bytes
	return s
}

// Rates are taken over the time since the last round, or since the one before
// when the last is too fresh; a subflow that came later has what it has.
func TestRates(t *testing.T) {
	const a, b = "10.0.0.1:1000", "10.0.0.1:1001"
	start := time.Now()
	var m meter
	m.begin(start)
	m.take(counted(a, 1000))
	m.end()
	second := start.Add(time.Second)
	m.begin(second)
	m.take(counted(a, 2000))
	m.take(counted(b, 500))
	m.end()
	for _, c := range []struct {
		local string
		bytes uint64
		after time.Duration // since the second round
		want  float64       // received, bit/s
	}{
		{a, 4000, time.Second, 16000},
		{a, 4000, 200 * time.Millisecond, 20000}, // 3000 bytes in 1.2 s
		{b, 1000, time.Second, 4000},
		{b, 600, 100 * time.Millisecond, 8000},
		{b, 600, 0, 0},
		{"10.0.0.1:1002", 600, time.Second, 0},
	} {
		send, receive := m.rates(counted(c.local, c.bytes), second.Add(c.after))
		if receive != c.want || send != 2*c.want {
			t.Errorf("%s, %d bytes %v later: %v and %v bit/s, want %v and twice that", c.local, c.bytes, c.after, receive, send, c.want)
		}
	}
	m.begin(second.Add(time.Second))
	m.take(counted(b, 600))
	m.end()
	if len(m.last) != 1 || len(m.samples) != 1 {
		t.Errorf("%d readings and %d samples are left of one subflow", len(m.last), len(m.samples))
	}
}
