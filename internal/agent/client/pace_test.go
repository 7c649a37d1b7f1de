package client

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// Rounds come at short intervals while they are quick, and never so late that the samples are no longer close. They take
// no more than their share of a core.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		each           time.Duration // the time to sample a connection
		wanted         int           // connections to sample
		interval       time.Duration
		least, sampled int // connections in a round
	}{
		{10 * time.Microsecond, 1, watchEvery, 1, 1},
		{10 * time.Microsecond, 200, watchEvery, 200, 200},
		{20 * time.Microsecond, 200, 200 * time.Millisecond, 200, 200},
		{30 * time.Microsecond, 200, path.LongestInterval, 160, 170},
		{10 * time.Microsecond, 10_000, path.LongestInterval, 490, 500},
		{200 * time.Microsecond, 10_000, path.LongestInterval, 24, 25},
		{time.Second, 10_000, path.LongestInterval, leastRoom, leastRoom},
	} {
		var p pace
		var interval time.Duration
		var sampled int
		for range 10 * paceLasts {
			sampled = min(c.wanted, p.room())
			interval = p.next(time.Duration(sampled)*c.each, sampled)
		}
		if interval.Round(10*time.Millisecond) != c.interval || sampled < c.least || sampled > c.sampled {
			t.Errorf("%d connections at %v: %d every %v, want %d to %d every %v", c.wanted, c.each, sampled, interval, c.least, c.sampled, c.interval)
		}
	}
}

// A round that was interrupted hardly lowers the number of connections in later rounds.
func TestPaceAfterInterruption(t *testing.T) {
	var p pace
	for range 2 * paceLasts {
		p.next(4*time.Millisecond, 200)
	}
	before := p.room()
	interval := p.next(time.Minute, 200)
	if after := p.room(); after < before*9/10 || interval != path.LongestInterval {
		t.Errorf("room for %d, then for %d after %v", before, after, interval)
	}
}
