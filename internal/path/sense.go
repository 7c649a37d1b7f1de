package path

import (
	"math"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file evaluates the samples of subflows on which this host receives. A receiver has no
// retransmissions from which to judge a path; it only has arrivals.

// watchFor is how long after its last data a connection is watched closely. It is longer than the
// silences that are significant.
const watchFor = 5 * time.Second

// senses summarises the samples of one subflow.
type senses struct {
	at                  time.Time // time of the last sample
	minRTT              time.Duration
	rtt                 time.Duration // smoothed, of data that this host sent
	segments            uint64        // received, with pure acknowledgements
	dataSegments        uint64
	dataSegmentsAtStill uint64 // when the connection's data last advanced
	outOfOrder          uint64
	dataSegmentsOut     uint32 // sent, with those sent again
	retransmitted       uint32
	dataEnd             uint64
	dryFor, silentFor   time.Duration // by at, since data and since anything last arrived
	unanswered          uint8         // probes or retransmissions
	waiting             time.Time     // since when sent data has had no answer at all; zero: none is sent
	habits              *habits       // nil while not sampled closely
}

// habits records a subflow's behaviour in the last seconds.
type habits struct {
	since           time.Time // start of the unbroken series of close samples
	step            step
	arrivals        measure.Arrivals
	sent            measure.Sent
	lossIn, lossOut measure.Evidence // of what arrives here, and of what this host sends
	gaps            measure.Gaps
	goodput         measure.Goodput
	press           measure.Press
	fall            measure.Fall
	steady          measure.Steady
	trip            measure.Trip
	answers         measure.Answers
	packets         uint64  // in both directions, since the history learned of them
	ecn             bool    // both ends do ECN
	bound           float64 // of what it receives, in bits a second; 0: none
}

// step holds the changes between the last two samples.
type step struct {
	elapsed         time.Duration
	received, acked uint64
	lossy           bool          // packets were lost
	limited         bool          // the network limited what this host sent
	queued          bool          // data arrived out of a queue
	gap             bool          // segments that arrived wait for what is missing before them
	trip            time.Duration // round trip with its queue, as far as it is known
	asked, heard    time.Duration // since this host last sent data, and since data last arrived
}

// longestTrip bounds the round trip that a receiver's TCP reports. Where the sender pauses, that includes the pauses.
const longestTrip = time.Second

// take adds one sample, in which payload was received and acknowledged since the last.
func (h *habits) take(s *senses, sm *Sample, now time.Time, received, acked uint64) {
	in, late := sm.DataSegsIn-s.dataSegments, sm.OutOfOrder != s.outOfOrder
	out, again := uint64(sm.DataSegsOut-s.dataSegmentsOut), uint64(sm.Retransmitted-s.retransmitted)
	h.trip.Take(now, s.minRTT, sm.RTT, acked > 0)
	h.step = step{
		elapsed: now.Sub(s.at), received: received, acked: acked, lossy: late || again > 0, limited: acked > 0 && sm.Limited, gap: sm.Gap,
		trip: max(h.trip.Now(now), min(sm.ReceiverRTT, longestTrip)), asked: sm.LastSent, heard: sm.LastData,
	}
	h.arrivals.Take(now, h.step.elapsed, in, late)
	h.lossIn.Take(h.step.elapsed, h.step.trip, in, late)
	h.sent.Take(now, out, again)
	h.lossOut.Take(h.step.elapsed, h.step.trip, out, again > 0)
	h.goodput.Take(now, h.step.elapsed, received, acked)
	flowing := measure.Flowing{
		Received: received, Acked: acked, Limited: sm.Limited, Trip: h.step.trip, Base: h.trip.Base(), Heard: sm.LastData, Lossy: h.step.lossy,
	}
	h.step.queued = flowing.Queued()
	h.press.Take(now, flowing)
	h.fall.Take(h.step.elapsed, flowing)
	h.steady.Take(h.step.elapsed, flowing)
	h.packets += in + out
	h.ecn = sm.ECN
	if in > 0 {
		h.gaps.Take(now, s.dryFor)
	}
}

// closeGap is the longest interval between two samples of a series of close ones.
const closeGap = 500 * time.Millisecond

// take adds one sample, in which payload was received and acknowledged since the last.
func (s *senses) take(sm *Sample, now time.Time, received, acked uint64) {
	if s.minRTT == 0 {
		s.minRTT = sm.MinRTT // measured at the join, without a queue
	}
	if s.at.IsZero() || now.Sub(s.at) > closeGap {
		s.habits = nil
	} else {
		if s.habits == nil {
			s.habits = &habits{since: s.at, lossIn: measure.Evidence{Lingers: true}}
		}
		s.habits.take(s, sm, now, received, acked)
	}
	s.at, s.rtt = now, sm.RTT
	s.dataSegmentsOut, s.retransmitted = sm.DataSegsOut, sm.Retransmitted
	s.segments, s.dataSegments, s.outOfOrder, s.dataEnd = sm.SegsIn, sm.DataSegsIn, sm.OutOfOrder, sm.DataEnd
	s.dryFor, s.silentFor = sm.LastData, min(sm.LastData, sm.LastAnswer)
	s.unanswered = clip(max(sm.Probes, sm.Backoff))
	switch {
	case !sm.Waiting:
		s.waiting = time.Time{}
	case s.waiting.IsZero() || s.lastAnswer().After(s.waiting):
		s.waiting = now
	}
}

// setsOut reports whether this host sent data lately and waits for an answer.
func (s *senses) setsOut(now time.Time) bool {
	return !s.waiting.IsZero() && now.Sub(s.waiting) < watchFor
}

// silent returns how long nothing at all has arrived.
func (s *senses) silent() time.Duration { return s.silentFor }

// dry returns how long no data has arrived.
func (s *senses) dry() time.Duration { return s.dryFor }

// lastData returns when data last arrived.
func (s *senses) lastData() time.Time { return s.at.Add(-s.dryFor) }

// lastAnswer returns when anything last arrived.
func (s *senses) lastAnswer() time.Time { return s.at.Add(-s.silentFor) }

// clip returns a small count that is not negative, at most 255.
func clip(n int) uint8 { return uint8(min(max(n, 0), math.MaxUint8)) }

// usualGap returns the longest gap between data before the present one. known is false if data was not observed for long
// enough before, or is too long ago.
func (s *senses) usualGap() (gap time.Duration, known bool) {
	if s.habits == nil || s.lastData().Sub(s.habits.since) < habitsAfter || s.dry() > watchFor {
		return 0, false
	}
	return s.habits.gaps.Longest(s.lastData())
}

// progress records how far a connection's data has arrived without a gap.
type progress struct {
	upTo  uint64
	still time.Time // when it last advanced; zero: unknown
}

// arrived records how far the connection's data has arrived. It is called after the samples of the
// subflows that were taken at the same time.
func (c *conn) arrived(upTo uint64, now time.Time) {
	if c.data.upTo == upTo && !c.data.still.IsZero() {
		return
	}
	c.data = progress{upTo, now}
	for _, s := range c.subflows {
		s.dataSegmentsAtStill = s.dataSegments
	}
}

// toWatch reports whether arrivals can reveal a fault of one of the connection's detours.
func (c *conn) toWatch(now time.Time) bool {
	up := 0
	detour, suspect, waits := false, false, false
	for _, s := range c.subflows {
		if s.up {
			up++
			detour = detour || s.detour != nil
			suspect = suspect || s.suspected()
			waits = waits || s.setsOut(now)
		}
	}
	return c.managed() && up > 1 && detour && (suspect || waits || now.Sub(c.moved) < watchFor)
}
