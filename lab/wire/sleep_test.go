package wire

import (
	"math"
	"testing"
)

// pollingShare plays a machine on which each poll takes a microsecond and deadlines
// come one every gap; it returns the share of the time spent polling.
func pollingShare(gap, end int64) float64 {
	var s sleeper
	var now, polled int64
	for deadline := gap; now < end; deadline += gap {
		for !s.due(now, deadline) {
			if d := s.until(now, deadline); d > 0 {
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
		t.Errorf("polled %.0f %% of the time on a busy line", 100*share)
	}
	if share := pollingShare(pollApart, second); share > 1.1/pollShare || share < 0.9/pollShare {
		t.Errorf("polled %.1f %% of the time on the busiest line that is polled for, want one part in %d", 100*share, pollShare)
	}
	sparse := pollingShare(10*ms, second)
	if want := float64(pollAhead) / float64(10*ms); math.Abs(sparse-want) > want/10 {
		t.Errorf("polled %.3f %% of the time on a sparse line, want %.3f %%", 100*sparse, 100*want)
	}
}

// On a busy link packets go together that are due within 0.1 ms, and the sleep before them is no
// longer than that past the first; else each goes in its time.
func TestTogether(t *testing.T) {
	busy := sleeper{sent: 10 * ms}
	now := busy.sent + 300*us
	for _, c := range []struct {
		in    int64 // the deadline, from now
		due   bool
		sleep int64
	}{
		{-us, true, 0},
		{0, true, 0},
		{together, true, 0},
		{together + 1, false, 2*together + 1},
	} {
		if due, sleep := busy.due(now, now+c.in), busy.until(now, now+c.in); due != c.due || sleep != c.sleep {
			t.Errorf("busy, %d ns ahead: due %t, sleeps %d ns", c.in, due, sleep)
		}
	}
	quiet := sleeper{sent: now - pollApart}
	if quiet.due(now, now+1) || quiet.until(now, now+1) != 0 || !quiet.due(now, now) {
		t.Error("on a quiet link a packet does not go in its time")
	}
}

func TestSleepWithoutDeadline(t *testing.T) {
	var s sleeper
	if d := s.until(5, math.MaxInt64); d != longest {
		t.Errorf("sleeps %d ns without a deadline, want %d", d, longest)
	}
}
