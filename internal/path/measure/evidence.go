package measure

import (
	"math"
	"time"
)

// Evidence decides whether a path loses more packets than is worth it, as soon as that is certain enough. It is
// Page's cumulative sum of log likelihood ratios, of a loss of Bad against one of Bearable: each sample without a
// loss lowers the sum and each with one raises it, by how much likelier that is at the higher loss. The sum never
// falls below zero, so a path that was good for long is found out as quickly as a new one. Between the two rates, at
// about 2 %, the sum does not drift.
//
// A sample shows only whether packets were lost, not how many. On a fast path almost every sample does, at either
// rate, and the sum hardly moves: then it takes longer. What is lost within a round trip counts once, because it shows
// for so long.
type Evidence struct {
	// Lingers is set if a loss shows for a round trip, like packets that arrive after a gap, and not only once, like
	// packets that are sent again.
	Lingers bool
	sum     float64
	deaf    time.Duration // samples with a loss tell nothing new for so long
	unheard uint64        // packets in such samples, whose loss shows later
}

const (
	// Bad is a loss from which a path is not worth having.
	Bad = 0.03
	// Bearable is a loss that a path may have.
	Bearable = 0.012
	// enough is the sum at which a path is found bad. evidence_test.go says how long that takes, and how often it
	// is wrong.
	enough = 5
)

// Take adds one sample, taken elapsed after the previous one: the round trip, the packets with data in the sample, and
// whether there is a sign of loss.
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

// IsBad reports whether the path is certain enough to lose too much.
func (e *Evidence) IsBad() bool { return e.sum >= enough }

// Reset begins anew.
func (e *Evidence) Reset() { *e = Evidence{Lingers: e.Lingers} }

// Unharmed reports whether a bulk transfer of so many bits per second is much faster than a path with this loss and
// round trip lets TCP be, which is about 1.2 packets in a round trip over the root of the loss (Mathis et al. 1997).
// Then packets were not lost but overtaken, or the sender does not mind their loss.
func Unharmed(loss, rate float64, trip time.Duration) bool {
	return rate/segmentBits*trip.Seconds()*math.Sqrt(loss) > unharmed
}

const (
	segmentBits = 1400 * 8
	unharmed    = 2.5
)
