package measure

import (
	"math"
	"time"
)

// Arrivals estimates the share of lost packets among those sent to this host on a subflow. It uses only the count of
// packets that arrived after a gap. A loss makes that count grow for about a round trip, so the share f of samples in
// which it grew gives the loss rate p:
//
//	p = -ln(1-f) / (interval + rtt) * time / segments
//
// Only samples in which packets arrived count. A burst after a pause may hold several packets that came after a gap,
// and the pause itself is no evidence.
//
// Compared with a link emulator, the estimate was within 6 to 12 % for bulk transfers over 5 s, and a quarter too low
// for requests. Reordering counts as loss.
type Arrivals struct{ seconds window[arrivals] }

type arrivals struct {
	samples  int
	active   int // samples in which packets arrived
	grew     int // active samples in which the count of packets after a gap grew
	segments uint64
	time     time.Duration
	busy     time.Duration // duration of the active samples
}

// Take adds one sample, taken elapsed after the previous one. grew is set if a packet arrived after a gap.
func (a *Arrivals) Take(now time.Time, elapsed time.Duration, segments uint64, grew bool) {
	c := a.seconds.at(now)
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

// Lost returns the share of recently lost packets. ok is false if there was too little data.
func (a *Arrivals) Lost(now time.Time, rtt time.Duration) (p float64, ok bool) {
	var sum arrivals
	for c := range a.seconds.until(now) {
		sum.samples += c.samples
		sum.active += c.active
		sum.grew += c.grew
		sum.segments += c.segments
		sum.time += c.time
		sum.busy += c.busy
	}
	if sum.time < 2*time.Second || sum.samples < 10 || sum.segments < 10 {
		return 0, false
	}
	n := float64(sum.active)
	f := min(float64(sum.grew)/n, 1-0.5/n)
	interval := sum.busy.Seconds() / n
	return -math.Log(1-f) / (interval + rtt.Seconds()) * sum.busy.Seconds() / float64(sum.segments), true
}

// Sent estimates the share of lost packets among those that this host sent on a subflow: the retransmissions. Those
// that were needless, because of reordering, count as lost.
type Sent struct{ seconds window[sent] }

type sent struct{ segments, again uint64 }

// Take adds one sample: the packets with data sent since the last one, and the retransmissions among them.
func (s *Sent) Take(now time.Time, segments, again uint64) {
	c := s.seconds.at(now)
	c.segments += segments
	c.again += again
}

// enoughSent is the number of packets that an estimate needs.
const enoughSent = 50

// Lost returns the share of recently lost packets. ok is false if too few packets were sent.
func (s *Sent) Lost(now time.Time) (p float64, ok bool) {
	var sum sent
	for c := range s.seconds.until(now) {
		sum.segments += c.segments
		sum.again += c.again
	}
	if sum.segments < enoughSent {
		return 0, false
	}
	return min(1, float64(sum.again)/float64(sum.segments)), true
}
