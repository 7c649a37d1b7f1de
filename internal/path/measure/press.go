package measure

import (
	"math"
	"time"
)

// Press tells whether the network limits what a subflow carries. Otherwise the sending program limits it, or the
// scheduler that uses other subflows. Where this host sends, the kernel knows. Where it receives, the sign is a
// queue, or losses that explain the rate. Without a sign the answer is no, which may be wrong, because a full path
// need not have a queue.
//
// A round trip that a receiver measures includes the sender's pauses. So it shows a queue only if the time since the
// last data is too short to explain it.
type Press struct{ seconds window[press] }

type press struct{ sent, limited, received, queued int }

const (
	// pressQueue is the queue from which a round trip shows one.
	pressQueue = 10 * time.Millisecond
	// pressShare is the least share of the shortest round trip that a queue must have as well.
	pressShare = 0.25
	// gapless is the largest share of the queue that may be time since the last data.
	gapless = 0.25
	// gapShare is the largest share of a sure queue that may be time between packets. A receiver measures up to two such times
	// too much, because it may also delay the acknowledgement.
	gapShare = 0.4
	// pressedShare is the share of samples with a sign from which the network is the limit.
	pressedShare = 0.7
	// pressedLeast is the number of samples that this needs.
	pressedLeast = 8
	// lossLimits is the least part of the rate that TCP can have with the path's loss (see Unharmed).
	lossLimits = 0.6
)

// Flowing describes what moved on a subflow since the last sample.
type Flowing struct {
	Received, Acked uint64
	// Limited is set if the network limited what this host sent.
	Limited bool
	// Trip is the present round trip with its queue, Base the shortest one.
	Trip, Base time.Duration
	// Heard is the time since data last arrived.
	Heard time.Duration
	// Gap is the mean time between the packets with data that arrived.
	Gap time.Duration
	// Lossy is set if packets were lost.
	Lossy bool
}

// Queued reports whether data arrived that had waited in a queue.
func (f *Flowing) Queued() bool {
	queue := f.Trip - f.Base
	return f.Received > 0 && queue >= pressQueue && queue.Seconds() >= pressShare*f.Base.Seconds() && f.Heard.Seconds() <= gapless*queue.Seconds()
}

// SurelyQueued reports whether data arrived that had waited in a queue, and the pauses between packets are too short to
// explain the round trip. A stream with a packet every 20 ms would show a queue in each sample that is taken right after a
// packet.
func (f *Flowing) SurelyQueued() bool {
	return f.Queued() && f.Gap.Seconds() <= gapShare*(f.Trip-f.Base).Seconds()
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

// Limits reports whether the network limited the subflow in the last seconds. rate is what the subflow carried, in
// bits a second, and loss the share of packets that it lost (0: none, or unknown).
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
