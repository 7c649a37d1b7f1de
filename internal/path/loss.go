package path

import (
	"math"
	"time"
)

// lossMeter estimates the share of packets sent to this host on a subflow that were lost. It only
// uses the count of packets that arrived after a gap. A loss makes that count grow for about a
// round trip, so the share f of samples in which it grew gives the loss rate p:
//
//	p = -ln(1-f) / (interval + rtt) * time / segments
//
// Only samples in which packets arrived count: a burst after a pause may hold several packets that
// came after a gap, and the pause itself is no evidence.
//
// Measured against a link emulator, the estimate was within 6 to 12 % for bulk transfers over 5 s.
// For requests it was a quarter too low. Reordering counts as loss.
type lossMeter struct {
	seconds [lossSpan]lossCount // the most recent ones, indexed by time
}

const lossSpan = 5 // seconds

type lossCount struct {
	second   int64
	samples  int
	active   int // samples in which packets arrived
	grew     int // active samples in which the count of packets after a gap grew
	segments uint64
	time     time.Duration
	busy     time.Duration // duration of the active samples
}

// take adds one sample, taken elapsed after the previous one.
func (l *lossMeter) take(now time.Time, elapsed time.Duration, segments uint64, grew bool) {
	second := now.Unix()
	c := &l.seconds[second%lossSpan]
	if c.second != second {
		*c = lossCount{second: second}
	}
	c.samples++
	c.segments += segments
	c.time += elapsed
	if segments == 0 && !grew {
		return
	}
	c.active++
	c.busy += elapsed
	if grew {
		c.grew++
	}
}

// estimate returns the share of packets lost recently. ok is false if there was too little data.
func (l *lossMeter) estimate(now time.Time, rtt time.Duration) (p float64, ok bool) {
	var sum lossCount
	for _, c := range l.seconds {
		if now.Unix()-c.second < lossSpan {
			sum.samples += c.samples
			sum.active += c.active
			sum.grew += c.grew
			sum.segments += c.segments
			sum.time += c.time
			sum.busy += c.busy
		}
	}
	if sum.time < 2*time.Second || sum.samples < 10 || sum.segments < 10 {
		return 0, false
	}
	n := float64(sum.active)
	f := min(float64(sum.grew)/n, 1-0.5/n)
	interval := sum.busy.Seconds() / n
	return -math.Log(1-f) / (interval + rtt.Seconds()) * sum.busy.Seconds() / float64(sum.segments), true
}
