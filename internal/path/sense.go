package path

import (
	"math"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file evaluates the samples of subflows on which this host receives. A receiver sees no retransmissions, so it
// has to judge a path by what arrives.

// watchFor is the time after its last data for which a connection is sampled closely. It is longer than any silence
// that means something.
const watchFor = 5 * time.Second

// senses keeps what the samples of one subflow showed.
type senses struct {
	at                  time.Time     // time of the last sample
	minRTT              time.Duration // shortest ever
	rtt                 time.Duration // smoothed, of data that this host sent
	segments            uint64        // received, pure acknowledgements included
	dataSegments        uint64
	dataSegmentsAtStill uint64 // when the connection's data last advanced
	outOfOrder          uint64
	inOrder             uint64 // payload acknowledged without missing data before it
	dataSegmentsOut     uint32 // sent, retransmissions included
	retransmitted       uint32
	needless            uint32 // retransmissions, as the peer reported
	dataEnd             uint64
	dryFor, silentFor   time.Duration // at the time at, since data and since anything last arrived
	unanswered          uint8         // probes or retransmissions without an answer
	unacked             uint8         // segments sent and not acknowledged, at most 255
	waiting             time.Time     // since when sent data has had no answer at all; zero: no data is unacknowledged
	habits              *habits       // nil unless sampled closely
}

// habits records how a subflow behaved in the last seconds.
type habits struct {
	since           time.Time // start of the unbroken series of close samples
	step            step
	arrivals        measure.Arrivals
	sent            measure.Sent
	lossIn, lossOut measure.Evidence // lossIn: what arrives here; lossOut: what this host sends
	gaps            measure.Gaps
	goodput         measure.Goodput
	press           measure.Press
	fall            measure.Fall
	steady          measure.Steady
	trip            measure.Trip
	answers         measure.Answers
	pauses          measure.Pauses
	burden          burden
	packets         uint64  // seen in both directions since the history last learned from the subflow
	ecn             bool    // both ends use ECN
	bound           float64 // bound on what it receives, in bits a second; 0: none
}

// step holds the changes between the last two samples.
type step struct {
	elapsed         time.Duration
	received, acked uint64
	inOrder         uint64        // payload that is now acknowledged without missing data before it
	lossy           bool          // packets were lost
	limited         bool          // the network limited what this host sent
	queued          bool          // data arrived that had waited in a queue
	surelyQueued    bool          // the same, and the pauses between packets do not explain it
	gap             bool          // segments that arrived wait for what is missing before them
	trip            time.Duration // round trip with its queue, as far as it is known
	missed          float64       // bytes that it could have carried while it paused
	asked, heard    time.Duration // since this host last sent data, and since data last arrived
}

// longestTrip bounds the round trip that this host's TCP reports as a receiver. If the sender pauses, that round trip
// includes the pauses.
const longestTrip = time.Second

// take adds one sample. received and acked are the payload since the last one.
func (h *habits) take(s *senses, sm *Sample, now time.Time, received, acked uint64) {
	in, late := sm.DataSegsIn-s.dataSegments, sm.OutOfOrder-s.outOfOrder
	out, again := uint64(sm.DataSegsOut-s.dataSegmentsOut), uint64(sm.Retransmitted-s.retransmitted)
	h.trip.Take(now, s.minRTT, sm.RTT, acked > 0)
	if sm.Timestamps && in > 0 {
		h.trip.TakeReceived(now, sm.ReceiverRTT)
		s.minRTT = h.trip.Base()
	}
	h.step = step{
		elapsed: now.Sub(s.at), received: received, acked: acked, inOrder: sm.BytesAcked - s.inOrder, lossy: late > 0 || again > 0, limited: acked > 0 && sm.Limited, gap: sm.Gap,
		trip: max(h.trip.Now(now), min(sm.ReceiverRTT, longestTrip)), asked: sm.LastSent, heard: sm.LastData,
	}
	h.step.missed = h.pauses.Take(h.step.elapsed, received+acked, sm.Gap || acked > 0 && sm.Unacked > 0)
	h.arrivals.Take(now, h.step.elapsed, in, late)
	h.lossIn.Take(h.step.elapsed, h.step.trip, in, late > 0)
	h.sent.Take(now, out, again, uint64(sm.Needless-s.needless))
	h.lossOut.Take(h.step.elapsed, h.step.trip, out, again > 0)
	h.goodput.Take(now, h.step.elapsed, received, acked)
	flowing := measure.Flowing{
		Received: received, Acked: acked, Limited: sm.Limited, Trip: h.step.trip, Base: h.trip.Base(), Heard: sm.LastData,
		Gap: h.step.elapsed / time.Duration(max(1, in)), Lossy: h.step.lossy,
	}
	h.step.queued, h.step.surelyQueued = flowing.Queued(), flowing.SurelyQueued()
	h.press.Take(now, flowing)
	h.fall.Take(h.step.elapsed, flowing)
	h.steady.Take(h.step.elapsed, flowing)
	h.packets += in + out
	h.ecn = sm.ECN
	if in > 0 {
		h.gaps.Take(now, s.dryFor)
	}
}

const (
	// closeGap is the longest time between two samples in a series of close ones.
	closeGap = 500 * time.Millisecond
	// LongestInterval is the longest time between two rounds of close samples. A busy host may be late.
	LongestInterval = closeGap / 2
)

// take adds one sample. received and acked are the payload since the last one. closely is set if the sample may be one
// of a series of close ones.
func (s *senses) take(sm *Sample, now time.Time, received, acked uint64, closely bool) {
	s.takeLeast(sm)
	if !closely || s.at.IsZero() || now.Sub(s.at) > closeGap {
		s.habits = nil
	} else {
		if s.habits == nil {
			s.habits = &habits{since: s.at, lossIn: measure.Evidence{Lingers: true}}
		}
		s.habits.take(s, sm, now, received, acked)
	}
	s.at, s.rtt, s.inOrder = now, sm.RTT, sm.BytesAcked
	s.dataSegmentsOut, s.retransmitted, s.needless = sm.DataSegsOut, sm.Retransmitted, sm.Needless
	s.segments, s.dataSegments, s.outOfOrder, s.dataEnd = sm.SegsIn, sm.DataSegsIn, sm.OutOfOrder, sm.DataEnd
	s.dryFor, s.silentFor = sm.LastData, min(sm.LastData, sm.LastAnswer)
	s.unanswered = clip(max(sm.Probes, sm.Backoff))
	s.unacked = clip(sm.Unacked)
	switch {
	case sm.Unacked == 0:
		s.waiting = time.Time{}
	case s.waiting.IsZero() || s.lastAnswer().After(s.waiting):
		s.waiting = now
	}
}

// takeLeast records the shortest round trip. The join may have met a queue, so later samples may lower it. They never raise
// it. The kernel forgets its shortest round trip after five minutes, so a longer-lasting queue would seem part of the path.
func (s *senses) takeLeast(sm *Sample) {
	switch {
	case s.minRTT == 0:
		s.minRTT = sm.joinTrip()
	case sm.MinRTT > 0:
		s.minRTT = min(s.minRTT, sm.MinRTT)
	}
}

// synAgain is the time after which a SYN without an answer is sent again (RFC 6298, section 2).
const synAgain = time.Second

// joinTrip returns the round trip of the join. If the SYN was sent again, Linux may measure from the first one on, and the
// waits for an answer do not count.
func (sm *Sample) joinTrip() time.Duration {
	if sm.Retransmitted == 0 {
		return sm.MinRTT
	}
	return sm.MinRTT % synAgain
}

// probeLost is the time after which a probe or its answer counts as lost. A second after the first probe the next one leaves,
// and an answer does not tell which of them it answers.
const probeLost = 900 * time.Millisecond

// timeProbe records the round trip of an idle subflow whose probe was just answered. The probe left when the subflow was
// suspected, because the subflow had been silent for longer than a second. If the subflow was not idle, the answer may belong
// to data, and if it came late, to a later probe. Then nothing is recorded. The kernel tells how long ago the answer came, so
// the time between samples adds no error.
func (s *subflow) timeProbe(q *suspicion) {
	took, probed := s.lastAnswer().Sub(q.since), s.at.Sub(q.since)
	if s.habits == nil || !q.unheard || s.segments != q.segments+1 || took <= 0 || took >= probeLost ||
		min(s.habits.step.asked, s.habits.step.heard) < probed+probeLost {
		return
	}
	s.habits.trip.TakeProbe(s.at, took)
	s.minRTT = s.habits.trip.Base()
}

// setsOut reports whether this host recently sent data and waits for an answer.
func (s *senses) setsOut(now time.Time) bool {
	return !s.waiting.IsZero() && now.Sub(s.waiting) < watchFor
}

// silent returns how long nothing has arrived.
func (s *senses) silent() time.Duration { return s.silentFor }

// dry returns how long no data has arrived.
func (s *senses) dry() time.Duration { return s.dryFor }

// lastData returns when data last arrived.
func (s *senses) lastData() time.Time { return s.at.Add(-s.dryFor) }

// lastAnswer returns when anything last arrived.
func (s *senses) lastAnswer() time.Time { return s.at.Add(-s.silentFor) }

// clip limits a count to 0 to 255.
func clip(n int) uint8 { return uint8(min(max(n, 0), math.MaxUint8)) }

// usualGap returns the longest gap between data before the present gap. known is false if data was not observed for
// long enough before, or if the present gap is too long.
func (s *senses) usualGap() (gap time.Duration, known bool) {
	if s.habits == nil || s.lastData().Sub(s.habits.since) < habitsAfter || s.dry() > watchFor {
		return 0, false
	}
	return s.habits.gaps.Longest(s.lastData())
}

// progress records how far the connection's data has arrived without a gap.
type progress struct {
	upTo  uint64
	still time.Time // when it last advanced; zero: unknown
	acked uint64    // how far the peer has received the data that this host sent
	full  bool      // the program has written as much as fits into the send buffer
}

// progressed records progress. It is called after the samples that were taken at the same time.
func (c *conn) progressed(p Progress, now time.Time) {
	c.data.acked, c.data.full = p.Acked, p.SendFull
	if c.data.upTo == p.Received && !c.data.still.IsZero() {
		return
	}
	c.data.upTo, c.data.still = p.Received, now
	for _, s := range c.subflows {
		s.dataSegmentsAtStill = s.dataSegments
	}
}

// toWatch reports whether samples of the connection can show that one of its detours does not work.
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
	return c.managed() && up > 1 && detour && (suspect || waits || now.Sub(later(c.since, c.moved)) < watchFor)
}
