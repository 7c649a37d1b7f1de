package emulink

import (
	"math"
	"testing"
)

// pollingShare simulates a machine on which each poll takes a microsecond and a packet is due every gap. It
// returns the share of the time spent polling.
func pollingShare(gap, end int64) float64 {
	var s sleeper
	var now, polled int64
	for due := gap; now < end; due += gap {
		for !s.ready(now, due, together) {
			if d := s.until(now, s.latest(due, together)); d > 0 {
				now += d
			} else {
				now += us
				polled += us
			}
		}
		s.sent = now
	}
	return float64(polled) / float64(now)
}

func TestPollingIsBounded(t *testing.T) {
	second := 1000 * ms
	if share := pollingShare(20*us, second); share != 0 {
		t.Errorf("polled %.0f %% of the time on a busy link", 100*share)
	}
	if share := pollingShare(pollApart, second); share > 1.1/pollShare || share < 0.9/pollShare {
		t.Errorf("polled %.1f %% of the time on the busiest link that is polled for, want one part in %d", 100*share, pollShare)
	}
	for gap := pollApart - together; gap < 2*pollApart; gap += 10 * us {
		if share := pollingShare(gap, second); share > 1.1/pollShare {
			t.Errorf("polled %.1f %% of the time with packets each %d ns, want one part in %d at most", 100*share, gap, pollShare)
		}
	}
	sparse := pollingShare(10*ms, second)
	if want := float64(pollAhead) / float64(10*ms); math.Abs(sparse-want) > want/10 {
		t.Errorf("polled %.3f %% of the time on a sparse link, want %.3f %%", 100*sparse, 100*want)
	}
}

// On a busy link, packets due within their slack are delivered together. Otherwise each is delivered on time.
func TestTogether(t *testing.T) {
	const slack = 100 * us
	busy := sleeper{sent: 10 * ms}
	now := busy.sent + 300*us
	for _, c := range []struct {
		in, slack int64 // from now
		ready     bool
		latest    int64 // from now
	}{
		{-us, slack, true, slack - us},
		{0, slack, true, slack},
		{slack, slack, true, 2 * slack},
		{slack + 1, slack, false, 2*slack + 1},
		{us, 0, false, us},
		{0, 0, true, 0},
	} {
		if ready, latest := busy.ready(now, now+c.in, c.slack), busy.latest(now+c.in, c.slack)-now; ready != c.ready || latest != c.latest {
			t.Errorf("busy, %d ns ahead, slack %d: ready %t, latest %d ns ahead", c.in, c.slack, ready, latest)
		}
	}
	quiet := sleeper{sent: now - pollApart}
	if quiet.ready(now, now+1, slack) || quiet.latest(now+1, slack) != now+1 || !quiet.ready(now, now, slack) {
		t.Error("on a quiet link a packet does not go in its time")
	}
}

func TestSleepWithoutDeadline(t *testing.T) {
	var s sleeper
	if d := s.until(5, math.MaxInt64); d != longest {
		t.Errorf("sleeps %d ns without a deadline, want %d", d, longest)
	}
}
