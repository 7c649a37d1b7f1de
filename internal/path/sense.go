package path

import "time"

// This file evaluates the samples of subflows on which this host receives. A receiver has no
// retransmissions from which to judge a path; it only has arrivals.

// watchFor is how long after its last data a connection is watched closely. It is longer than the
// silences that are significant.
const watchFor = 5 * time.Second

// senses summarises the samples of one subflow.
type senses struct {
	at                   time.Time // time of the last sample
	since                time.Time // start of the unbroken series of close samples
	minRTT               time.Duration
	segments             uint64 // received, with pure acknowledgements
	dataSegments         uint64
	dataSegmentsAtStill  uint64 // when the connection's data last advanced
	outOfOrder           uint64
	dataEnd              uint64
	lastData, lastAnswer time.Time // when data and when anything last arrived
	unanswered           int       // probes or retransmissions
	waiting              time.Time // since when sent data has had no answer at all; zero: none is sent
	habits               *habits   // nil while not sampled closely
}

// habits records a subflow's behaviour in the last seconds.
type habits struct {
	loss lossMeter
	gaps gapMeter
}

// closeGap is the longest interval between two samples of a series of close ones.
const closeGap = 500 * time.Millisecond

func (s *senses) take(sm *Sample, now time.Time) {
	elapsed := now.Sub(s.at)
	if s.at.IsZero() || elapsed > closeGap {
		s.since, s.habits = now, nil
	} else {
		if s.habits == nil {
			s.habits = &habits{}
		}
		grew := sm.DataSegsIn - s.dataSegments
		s.habits.loss.take(now, elapsed, grew, sm.OutOfOrder != s.outOfOrder)
		if grew > 0 {
			s.habits.gaps.take(now, s.at.Sub(s.lastData))
		}
	}
	if s.minRTT == 0 {
		s.minRTT = sm.MinRTT // measured at the join, without a queue
	}
	s.at = now
	s.segments, s.dataSegments, s.outOfOrder, s.dataEnd = sm.SegsIn, sm.DataSegsIn, sm.OutOfOrder, sm.DataEnd
	s.lastData, s.lastAnswer = now.Add(-sm.LastData), now.Add(-min(sm.LastData, sm.LastAnswer))
	s.unanswered = max(sm.Probes, sm.Backoff)
	switch {
	case !sm.Waiting:
		s.waiting = time.Time{}
	case s.waiting.IsZero() || s.lastAnswer.After(s.waiting):
		s.waiting = now
	}
}

// silent returns how long nothing at all has arrived.
func (s *senses) silent() time.Duration { return s.at.Sub(s.lastAnswer) }

// dry returns how long no data has arrived.
func (s *senses) dry() time.Duration { return s.at.Sub(s.lastData) }

// gapMeter records the longest gaps between data in the last seconds.
type gapMeter struct {
	seconds [lossSpan]struct {
		second  int64
		longest time.Duration
	}
}

func (g *gapMeter) take(now time.Time, gap time.Duration) {
	second := now.Unix()
	c := &g.seconds[second%lossSpan]
	if c.second != second {
		c.second, c.longest = second, 0
	}
	c.longest = max(c.longest, gap)
}

// longest returns the longest gap in the seconds before the silence began. ok is false if there was
// no data.
func (g *gapMeter) longest(before time.Time) (longest time.Duration, ok bool) {
	for _, c := range g.seconds {
		if age := before.Unix() - c.second; age >= 0 && age < lossSpan {
			longest, ok = max(longest, c.longest), true
		}
	}
	return longest, ok
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
	detour, suspect := false, false
	for _, s := range c.subflows {
		if s.up {
			up++
			detour = detour || s.detour != nil
			suspect = suspect || s.suspected()
		}
	}
	return c.managed() && up > 1 && detour && (suspect || now.Sub(c.moved) < watchFor)
}
