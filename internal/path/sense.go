package path

import (
	"iter"
	"net/netip"
	"slices"
	"time"
)

// What this host senses of a subflow on which it receives. A receiver has no
// retransmissions that would tell it about a path; it has arrivals.

// watchFor is how long after data moved a connection is watched closely: for longer
// than a silence that means something.
const watchFor = 5 * time.Second

// senses is what samples told about one subflow.
type senses struct {
	at                   time.Time // of the last sample
	since                time.Time // of the first of an unbroken row of close samples
	minRTT               time.Duration
	segments             uint64 // that came in, with pure acknowledgements
	dataSegments         uint64
	dataSegmentsAtStill  uint64 // when the connection's data last moved on
	outOfOrder           uint64
	dataEnd              uint64
	lastData, lastAnswer time.Time // when data, and when anything came
	unanswered           int       // probes or retransmissions
	habits               *habits   // nil while it is not sampled closely
}

// habits are what was usual for a subflow in the last seconds.
type habits struct {
	loss lossMeter
	gaps gapMeter
}

// closeGap is the most that may lie between two samples of a row of close ones.
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
		s.minRTT = sm.MinRTT // at the join: without a queue
	}
	s.at = now
	s.segments, s.dataSegments, s.outOfOrder, s.dataEnd = sm.SegsIn, sm.DataSegsIn, sm.OutOfOrder, sm.DataEnd
	s.lastData, s.lastAnswer = now.Add(-sm.LastData), now.Add(-min(sm.LastData, sm.LastAnswer))
	s.unanswered = max(sm.Probes, sm.Backoff)
}

// silent is how long nothing at all has come.
func (s *senses) silent() time.Duration { return s.at.Sub(s.lastAnswer) }

// dry is how long no data has come.
func (s *senses) dry() time.Duration { return s.at.Sub(s.lastData) }

// gapMeter remembers the longest silences between data of the last seconds.
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

// longest is the longest gap in the seconds before the silence began; false: there was
// no data.
func (g *gapMeter) longest(before time.Time) (longest time.Duration, ok bool) {
	for _, c := range g.seconds {
		if age := before.Unix() - c.second; age >= 0 && age < lossSpan {
			longest, ok = max(longest, c.longest), true
		}
	}
	return longest, ok
}

// progress is how far a connection's data has arrived without a gap.
type progress struct {
	upTo  uint64
	still time.Time // since when it has not moved on; zero: not known
}

// arrived takes in how far the data of a connection has arrived, after the samples of its
// subflows that were taken with it.
func (c *conn) arrived(upTo uint64, now time.Time) {
	if c.data.upTo == upTo && !c.data.still.IsZero() {
		return
	}
	c.data = progress{upTo, now}
	for _, s := range c.subflows {
		s.dataSegmentsAtStill = s.dataSegments
	}
}

// Ends are the addresses of a subflow.
type Ends struct{ Local, Remote netip.AddrPort }

// Watched yields the connections that are to be sampled closely, ten times a second, with
// their subflows: those with a detour on which data moved lately. A Measured with these
// samples has Received, too.
func (m *Manager) Watched(now time.Time) iter.Seq2[Token, []Ends] {
	return func(yield func(Token, []Ends) bool) {
		m.busy = slices.DeleteFunc(m.busy, func(c *conn) bool {
			c.busy = m.conns[c.token] == c && c.watched(now)
			return !c.busy
		})
		var ends []Ends
		for _, c := range m.busy {
			ends = ends[:0]
			for _, s := range c.subflows {
				if s.up {
					ends = append(ends, Ends{s.local, s.remote})
				}
			}
			if !yield(c.token, ends) {
				return
			}
		}
	}
}

// watched reports whether a detour of the connection may be found out by what arrives.
func (c *conn) watched(now time.Time) bool {
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

// watch begins to sample a connection closely, if it is to be.
func (m *Manager) watch(c *conn, now time.Time) {
	if !c.busy && c.watched(now) {
		c.busy = true
		m.busy = append(m.busy, c)
	}
}
