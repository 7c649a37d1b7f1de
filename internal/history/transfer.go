package history

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

const (
	// stillShare is the share of a transfer's data below which the direct path counts as standing still. Its rate then
	// no longer shows what it would carry alone.
	stillShare = 0.02
	// leastBusy is the rate in bytes per second below which a transfer is ignored.
	leastBusy = 10_000
	// spread is the relative uncertainty of a path's rate: it may differ this much from what it was a moment before.
	spread = 0.15
	// settleAfter is the length of a stretch in seconds. In a shorter one, the variation of a path's rate would look
	// like gains. With a longer one, a changed rate would be noticed late.
	settleAfter = 12
	// longestStretch bounds a stretch while the kind of traffic is not known, in seconds.
	longestStretch = 60
	// mostClosed bounds the stretches that wait until it is known what the direct path would carry alone.
	mostClosed = 25
)

// The directions of a transfer, as indices of counters.
const (
	inward = iota
	outward
)

type subKey struct{ local, remote netip.AddrPort }

// transfer is what the Observer remembers of a connection.
type transfer struct {
	at          time.Time // when it was last observed; zero: never
	seen        map[subKey]counters
	left        map[uint16]counters // counters from the previous agent, by the subflow's local port
	uncounted   map[uint16]counters // the part of left that catchUp has not handled yet
	bulk, short bool                // the kind of traffic; short: not known yet
	open        stretch
	closed      []stretch // those whose gain is not known yet
	last        stretch   // the last observation
	direct      float64   // recent rate of the direct path, in bytes per second
	total       float64   // recent rate of all paths while both the direct path and detours carried
	alone       float64   // recent rate of the direct path while no transfer used detours; 0: not known
	aloneAmong  int       // the number of transfers that ran while alone was measured
	queues      queues
	stalled     bool
}

// counters has the numbers of bytes that a subflow received and sent.
type counters [2]uint64

// stretch is a part of a transfer: the bytes that the direct path and the detours carried, for all transfers with its server,
// and the seconds that this took.
type stretch struct {
	direct, detours, seconds float64
	// even is the number of bytes that the direct path would have carried if its share were the same for each server.
	even float64
	// once is its part of the seconds, so that the parts of all transfers add up to the time that passed.
	once float64
	// among is the number of transfers that ran, this one included. 0 means that it changed.
	among int
	// detoured reports whether any transfer used detours. It is set for single observations only.
	detoured bool
	// still reports whether this transfer's own data came over detours only. It is set for single observations only.
	still bool
	end   time.Time
	state api.SubflowState // of the direct path; empty: it has no subflow
}

func (s *stretch) add(more stretch) {
	if s.seconds == 0 {
		s.among = more.among
	} else if s.among != more.among {
		s.among = 0
	}
	s.direct += more.direct
	s.detours += more.detours
	s.even += more.even
	s.seconds += more.seconds
	s.once += more.once
	s.end = more.end
}

// rate returns the direct path's rate.
func (s *stretch) rate() float64 { return s.direct / s.seconds }

// bytes returns what all paths carried.
func (s *stretch) bytes() float64 { return s.direct + s.detours }

// longer returns how many more seconds the stretch would have taken at the given rate. Seconds in which other transfers
// ran as well count in part.
func (s *stretch) longer(rate float64) float64 {
	return max(s.bytes()/rate-s.seconds, 0) * s.once / s.seconds
}

// moved returns what the paths carried since the last call, in the direction with more data, and the times for which
// packets waited in queues there.
func (t *transfer) moved(c *api.Connection) (m stretch, w waits) {
	seen := make(map[subKey]counters, len(c.Subflows))
	var by [2][2]float64
	carried := make([]counters, len(c.Subflows))
	for i := range c.Subflows {
		s := &c.Subflows[i]
		k, now := subKey{s.Local, s.Remote}, counters{s.BytesReceived, s.BytesSent}
		was, known := t.seen[k]
		if !known {
			was = t.left[s.Local.Port()]
		}
		over := 1
		if s.Waypoint == "" {
			over, m.state = 0, s.State
		}
		for way := range now {
			now[way] = max(now[way], was[way]) // a subflow that has just ended has no counts
			carried[i][way] = now[way] - was[way]
			by[way][over] += float64(carried[i][way])
		}
		seen[k] = now
	}
	t.seen, t.left = seen, nil
	way := inward
	if by[outward][0]+by[outward][1] > by[inward][0]+by[inward][1] {
		way = outward
	}
	m.direct, m.detours = by[way][0], by[way][1]
	for i := range c.Subflows {
		if carried[i][way] > 0 {
			w.take(c, &c.Subflows[i], way)
		}
	}
	return m, w
}

// counts reports whether a gain in an observation may count.
func (t *transfer) counts(m stretch) bool {
	return (t.bulk || t.short) && m.bytes() >= leastBusy*m.seconds
}

// take adds an observation: what moved returned, for the time between two states.
func (t *transfer) take(seen *byMinute, m stretch, w waits) {
	t.last = m
	total, rate := m.bytes(), m.direct/m.seconds
	switch {
	case !t.bulk && !t.short:
		t.open = stretch{}
		t.finish(seen)
		return
	case !t.counts(m):
		t.settle(seen)
		return
	case m.detours == 0:
		t.direct, t.stalled = smooth(t.direct, rate), false
		if !m.detoured {
			if t.aloneAmong != m.among {
				t.alone, t.aloneAmong = 0, m.among
			}
			t.alone = smooth(t.alone, rate)
		}
		t.settle(seen) // the rate just measured counts, too
		return
	case m.direct < stillShare*total:
		t.settle(seen)
		if t.bulk {
			t.still(seen, m)
		}
		return
	}
	if m.still && t.bulk {
		seen.gain(&m, t.stall(m))
	} else {
		t.stalled = false
	}
	t.direct, t.total = smooth(t.direct, rate), smooth(t.total, total/m.seconds)
	t.queues.add(w)
	t.open.add(m)
	switch {
	case !t.short && t.open.seconds >= settleAfter:
		t.settle(seen)
	case t.open.seconds > longestStretch:
		t.open = stretch{}
	}
}

// end adds what the connection carried in the seconds between the last state and its end. The counters are gone by
// then, so it assumes that the rates stayed the same.
func (t *transfer) end(after float64) {
	l := t.last
	if t.open.seconds == 0 || !t.counts(l) {
		return
	}
	share := after / l.seconds
	t.open.add(stretch{
		direct: l.direct * share, detours: l.detours * share, even: l.even * share, seconds: after, once: l.once * share, among: l.among,
		end: l.end.Add(time.Duration(after * float64(time.Second))),
	})
}

// settle ends the open stretch, begins another, and counts the closed stretches if their gain is known.
func (t *transfer) settle(seen *byMinute) {
	s := t.open
	if !t.short {
		t.open = stretch{}
	}
	if t.bulk && s.direct > 0 {
		t.closed = append(t.closed, s)
	}
	var waiting []stretch
	for i := range t.closed {
		c := &t.closed[i]
		if k := t.knows(c); k == unknown {
			waiting = append(waiting, *c)
		} else {
			t.count(seen, c, k == measured)
		}
	}
	surplus := max(len(waiting)-mostClosed, 0)
	bound(seen, waiting[:surplus])
	t.closed = waiting[surplus:]
}

// count adds the gain of a stretch. It assumes that the direct path alone would have carried what it carried beside the
// detours, or what it carries alone if that is more. If certain is false, it might have carried as much as all paths
// together, so the lower bound of the gain is 0.
func (t *transfer) count(seen *byMinute, s *stretch, certain bool) {
	rate := max(s.rate(), t.aloneIn(s))
	g := api.Gained{Saved: s.longer(rate), SavedHigh: s.longer(rate * (1 - spread))}
	if certain {
		g.SavedLow = s.longer(rate * (1 + spread))
	}
	seen.gain(s, g)
}

// aloneIn returns what the direct path carries alone, for comparison with a stretch. It returns 0 if that is not known.
// Transfers share the direct path, so a rate that was measured among more or fewer of them says nothing.
func (t *transfer) aloneIn(s *stretch) float64 {
	if s.among == 0 || s.among != t.aloneAmong {
		return 0
	}
	return t.alone
}

// forget drops the open stretch, because it is not known what happened since the last observation.
func (t *transfer) forget() { t.at, t.open, t.uncounted = time.Time{}, stretch{}, nil }

// finish counts all stretches. For those whose gain is not known, it counts the bounds. A transfer may end before the
// kind of its traffic is known, and have saved something nevertheless.
func (t *transfer) finish(seen *byMinute) {
	t.settle(seen)
	if t.short && t.open.direct > 0 {
		t.closed = append(t.closed, t.open)
		t.open = stretch{}
	}
	bound(seen, t.closed)
	t.closed = nil
}

// soFar counts what finish would count now, and leaves the transfer as it is.
func (t *transfer) soFar(seen *byMinute) {
	c := *t
	c.closed = slices.Clone(t.closed)
	c.finish(seen)
}

// bound counts the bounds of stretches whose gain is not known. If the paths share a bottleneck, detours saved nothing.
// If they do not, the direct path alone would have carried what it carried beside the detours.
func bound(seen *byMinute, list []stretch) {
	for i := range list {
		most := list[i].longer(list[i].rate() * (1 - spread))
		seen.gain(&list[i], api.Gained{SavedHigh: most, SavedUnknown: most})
	}
}

// still adds the gain of an observation in which the direct path stood still. Alone, it would have carried this data
// later, at its last rate.
func (t *transfer) still(seen *byMinute, m stretch) {
	g := t.stall(m)
	if known := max(t.direct, t.aloneIn(&m)); known > 0 {
		most := known
		if t.knows(&m) != measured {
			most = max(known, t.total)
		}
		carried := m.bytes() * m.once / m.seconds
		g.Saved = carried / known
		g.SavedLow = carried / (most * (1 + spread))
		g.SavedHigh = carried / (known * (1 - spread))
	}
	seen.gain(&m, g)
}

// stall returns the stall that an observation shows in which only detours carried the transfer's data.
func (t *transfer) stall(m stretch) (g api.Gained) {
	if m.state != api.SubflowBackup && t.direct > 0 { // otherwise it was set aside, or has not begun to carry
		if !t.stalled {
			g.Stalls = 1
		}
		t.stalled = true
		g.StallTime = m.seconds
	}
	return g
}

// smooth returns a moving mean in which the new value counts one half.
func smooth(mean, value float64) float64 {
	if mean == 0 {
		return value
	}
	return (mean + value) / 2
}
