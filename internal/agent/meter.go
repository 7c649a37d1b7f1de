package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/mptcp"
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

// meter remembers the last two readings of every subflow, for rates.
type meter struct {
	last map[subflowKey]reading
}

type subflowKey struct{ local, remote netip.AddrPort }

type reading struct {
	at              time.Time
	received, acked uint64
	// the reading before, for rates
	atBefore                    time.Time
	receivedBefore, ackedBefore uint64
}

// sample reads all subflows' counters, lets the path manager see them and says
// when to do so again.
func (c *client) sample(ctx context.Context, now time.Time) time.Duration {
	next := make(map[subflowKey]reading, len(c.meter.last))
	var samples []path.Sample
	err := c.kernel.Subflows(func(s *mptcp.Subflow) bool {
		if !s.ServerSide {
			samples = append(samples, sampleOf(s))
			key := subflowKey{s.Local, s.Remote}
			old, known := c.meter.last[key]
			r := reading{at: now, received: s.Metrics.BytesReceived, acked: s.Metrics.BytesAcked}
			if known {
				r.atBefore, r.receivedBefore, r.ackedBefore = old.at, old.received, old.acked
			}
			next[key] = r
		}
		return true
	})
	if err != nil {
		c.log.Warn("subflows cannot be measured", "err", err)
		return sampleEvery
	}
	c.meter.last = next
	c.tell(ctx, now, path.Measured{Samples: samples})
	return max(sampleEvery, sampleShare*time.Since(now))
}

// rates are payload bits per second since the last reading that is not too
// fresh to tell.
func (m *meter) rates(s *mptcp.Subflow, now time.Time) (send, receive float64) {
	r, ok := m.last[subflowKey{s.Local, s.Remote}]
	if !ok {
		return 0, 0
	}
	at, received, acked := r.at, r.received, r.acked
	if now.Sub(at) < rateOver && !r.atBefore.IsZero() {
		at, received, acked = r.atBefore, r.receivedBefore, r.ackedBefore
	}
	over := now.Sub(at).Seconds()
	if over <= 0 {
		return 0, 0
	}
	return 8 * float64(s.Metrics.BytesAcked-acked) / over, 8 * float64(s.Metrics.BytesReceived-received) / over
}
