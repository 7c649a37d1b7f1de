package measure

import (
	"math"
	"time"
)

// Press tells whether the network limits what a subflow carries, and not the program that sends it or the scheduler that
// gives it to other subflows. Where this host sends, the kernel knows. Where it receives, a queue shows it, or losses that
// explain the rate. Without such a sign the answer is no, which may be wrong: a path can carry all it can without a queue.
//
// A round trip that a receiver measures includes the sender's pauses. So it shows a queue only while data arrives without
// gaps that could explain it.
type Press struct{ seconds window[press] }

type press struct{ sent, limited, received, queued int }

const (
	// A round trip shows a queue if it is longer than the least one by this time and this share of that.
	pressQueue = 10 * time.Millisecond
	pressShare = 0.25
	// gapless is the share of the queue that the time since the latest data may have.
	gapless = 0.25
	// pressedShare is the least share of samples with a sign, of at least pressedLeast samples.
	pressedShare = 0.7
	pressedLeast = 8
	// lossLimits is the least part of the rate that a path's loss lets TCP have (see Unharmed).
	lossLimits = 0.6
)

// Flowing describes what moved on a subflow since the last sample.
type Flowing struct {
	Received, Acked uint64
	// Limited is set if the network limited what this host sent.
	Limited bool
	// Trip is the present round trip with its queue, and Base the least one.
	Trip, Base time.Duration
	// Heard is the time since data last arrived.
	Heard time.Duration
	// Lossy is set if packets were lost.
	Lossy bool
}

// Queued reports whether data arrived out of a queue.
func (f *Flowing) Queued() bool {
	queue := f.Trip - f.Base
	return f.Received > 0 && queue >= pressQueue && queue.Seconds() >= pressShare*f.Base.Seconds() && f.Heard.Seconds() <= gapless*queue.Seconds()
}

// Take adds one sample.
func (p *Press) Take(now time.Time, f Flowing) {
	c := p.seconds.at(now)
	if f.Acked > f.Received {
		c.sent++
		if f.Limited {
			c.limited++
		}
		return
	}
	c.received++
	if f.Queued() {
		c.queued++
	}
}

// Limits reports whether the network limited the last seconds, in which the subflow carried so many bits a second with this
// round trip, and lost this share of its packets (0: none, or unknown).
func (p *Press) Limits(now time.Time, rate, loss float64, trip time.Duration) bool {
	var sum press
	for c := range p.seconds.until(now) {
		sum.sent += c.sent
		sum.limited += c.limited
		sum.received += c.received
		sum.queued += c.queued
	}
	signs, of := sum.queued, sum.received
	if sum.sent > sum.received {
		signs, of = sum.limited, sum.sent
	}
	if of >= pressedLeast && float64(signs) >= pressedShare*float64(of) {
		return true
	}
	return sum.received >= sum.sent && loss > 0 && rate/segmentBits*trip.Seconds()*math.Sqrt(loss) >= lossLimits
}
