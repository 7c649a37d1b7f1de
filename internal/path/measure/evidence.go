package measure

import (
	"math"
	"time"
)

// Evidence decides whether a path loses more packets than is acceptable, as soon as that is certain enough. It is
// Page's cumulative sum of log likelihood ratios, of a loss of Bad against a loss of Bearable. A sample with a loss
// raises the sum, a sample without one lowers it, by how much likelier the sample is at the higher loss. The sum
// never falls below zero, so a path that was good for long is found bad as quickly as a new one. At a loss of about
// 2 % the sum does not drift.
//
// A sample shows only whether packets were lost, not how many. On a fast path almost every sample shows a loss, at
// either rate, and the sum grows slowly. All losses within a round trip count once, because one loss may show for
// that long.
type Evidence struct {
	// Lingers is set if a loss shows for a round trip, as packets do that arrive after a gap. It is not set if a loss
	// shows once, as a retransmission does.
	Lingers bool
	sum     float64
	deaf    time.Duration // time for which further losses tell nothing new
	unheard uint64        // packets in samples of that time, whose losses show later
}

const (
	// Bad is the share of lost packets from which a path is not worth using.
	Bad = 0.03
	// Bearable is the share of lost packets that a path may have.
	Bearable = 0.012
	// enough is the sum at which a path is found bad. evidence_test.go shows how long that takes and how often it is
	// wrong.
	enough = 5
)

// Take adds one sample, taken elapsed after the previous one. trip is the round trip, segments the number of packets
// with data in the sample, and lost tells whether the sample shows a loss.
func (e *Evidence) Take(elapsed, trip time.Duration, segments uint64, lost bool) {
	if elapsed <= 0 || segments == 0 {
		return
	}
	if lost && e.deaf > 0 {
		e.deaf -= elapsed
		if e.Lingers {
			e.unheard += segments
		}
		return
	}
	n := float64(segments + e.unheard)
	e.deaf, e.unheard = 0, 0
	if lost {
		shows := func(p float64) float64 { return 1 - math.Exp(-p*n) }
		e.sum += math.Log(shows(Bad) / shows(Bearable))
		e.deaf = trip
	} else {
		e.sum = max(0, e.sum-(Bad-Bearable)*n)
	}
}

// IsBad reports whether the path loses too much, with enough certainty.
func (e *Evidence) IsBad() bool { return e.sum >= enough }

// Reset drops the evidence.
func (e *Evidence) Reset() { *e = Evidence{Lingers: e.Lingers} }

// Unharmed reports whether a bulk transfer of rate bits a second is much faster than TCP can be with this loss and
// round trip. TCP sends about 1.2 packets in a round trip over the root of the loss (Mathis et al. 1997). A faster
// transfer means that packets were overtaken instead of lost, or that the sender ignores losses.
func Unharmed(loss, rate float64, trip time.Duration) bool {
	return rate/segmentBits*trip.Seconds()*math.Sqrt(loss) > unharmed
}

const (
	// segmentBits is the size of a packet's payload, in bits.
	segmentBits = 1400 * 8
	// unharmed takes the place of Mathis's 1.2 in a rate that is too high for the losses to be real.
	unharmed = 2.5
)
