package history

import (
	"net/netip"

	"github.com/detour-collective/dcol/internal/api"
)

const (
	// stillShare is the share of a transfer below which the direct path counts as standing still: below it, what the
	// direct path would have carried alone cannot be told from its rate.
	stillShare = 0.02
	// leastBusy is the rate in bytes per second below which a transfer counts for nothing.
	leastBusy = 10_000
	// spread is how much a path's rate may differ from what it was a moment before.
	spread = 0.15
	// settleAfter is the length in seconds of a stretch. A shorter one would take the ups and downs of a path's rate for
	// gains, and a longer one would notice late that the rate has changed.
	settleAfter = 12
	// longestStretch bounds a stretch in seconds whose kind of traffic is not known.
	longestStretch = 60
)

type subKey struct{ local, remote netip.AddrPort }

// transfer is what is remembered of a connection.
type transfer struct {
	seen        map[subKey][2]uint64
	bulk, short bool // the kind of its traffic; short: not known yet
	open        stretch
	last        stretch // what was observed last
	direct      float64 // last rate of the direct path, in bytes per second
	alone       float64 // its rate while it carried alone; 0: not known
	stalled     bool
}

// stretch is a part of a transfer: what the direct path and the detours carried in some seconds, in bytes.
type stretch struct {
	direct, detours, seconds float64
	state                    api.SubflowState // of the direct path; empty: there is none
}

func (s *stretch) add(more stretch) {
	s.direct += more.direct
	s.detours += more.detours
	s.seconds += more.seconds
}

// moved returns what the paths carried since the last call, in the direction in which more was carried.
func (t *transfer) moved(c *api.Connection) (m stretch) {
	seen := make(map[subKey][2]uint64, len(c.Subflows))
	var by [2][2]float64
	for i := range c.Subflows {
		s := &c.Subflows[i]
		k, now := subKey{s.Local, s.Remote}, [2]uint64{s.BytesReceived, s.BytesSent}
		was := t.seen[k]
		over := 1
		if s.Waypoint == "" {
			over, m.state = 0, s.State
		}
		for way := range now {
			now[way] = max(now[way], was[way]) // one that has just ended has no figures
			by[way][over] += float64(now[way] - was[way])
		}
		seen[k] = now
	}
	t.seen = seen
	way := 0
	if by[1][0]+by[1][1] > by[0][0]+by[0][1] {
		way = 1
	}
	m.direct, m.detours = by[way][0], by[way][1]
	return m
}

// take adds what was observed between two states.
func (t *transfer) take(g *api.Gained, m stretch) {
	t.last = m
	total, rate := m.direct+m.detours, m.direct/m.seconds
	switch {
	case !t.bulk && !t.short:
		t.open = stretch{}
		return
	case total < leastBusy*m.seconds:
		t.settle(g)
		return
	case m.detours == 0:
		t.alone, t.direct, t.stalled = smooth(t.alone, rate), smooth(t.direct, rate), false
		t.settle(g) // with what it carries alone now
		return
	case m.direct < stillShare*total:
		t.settle(g)
		if t.bulk {
			t.still(g, m)
		}
		return
	}
	t.stalled, t.direct = false, smooth(t.direct, rate)
	t.open.add(m)
	switch {
	case !t.short && t.open.seconds >= settleAfter:
		t.settle(g)
	case t.open.seconds > longestStretch:
		t.open = stretch{}
	}
}

// end adds what was carried between the last state and the end of the connection, so many seconds later. As its counters
// end with it, it is taken to have gone on as before.
func (t *transfer) end(after float64) {
	l := t.last
	if t.open.seconds == 0 || l.direct+l.detours < leastBusy*l.seconds {
		return
	}
	share := after / l.seconds
	t.open.add(stretch{direct: l.direct * share, detours: l.detours * share, seconds: after})
}

// settle adds the gain of the open stretch, and begins another.
//
// The direct path alone would have carried at least what it carried beside the detours, and what it carried alone
// before, or right after, if both share a bottleneck.
func (t *transfer) settle(g *api.Gained) {
	s := t.open
	if !t.short {
		t.open = stretch{}
	}
	if !t.bulk || s.direct == 0 {
		return
	}
	rate, total := s.direct/s.seconds, s.direct+s.detours
	longer := func(rate float64) float64 { return max(total/rate-s.seconds, 0) }
	known := max(rate, t.alone)
	g.Saved += longer(known)
	g.SavedHigh += longer(known * (1 - spread))
	if t.alone > 0 {
		g.SavedLow += longer(known * (1 + spread))
	} // else both may share a bottleneck
}

// still adds the gain while the direct path stands still. It would have carried nothing, and all of what came meanwhile
// later, at its last rate.
func (t *transfer) still(g *api.Gained, m stretch) {
	if m.state != api.SubflowBackup && t.direct > 0 { // else it was set aside, or has not begun
		if !t.stalled {
			g.Stalls++
		}
		t.stalled = true
		g.StallTime += m.seconds
	}
	if known := max(t.direct, t.alone); known > 0 {
		late := (m.direct + m.detours) / known
		g.Saved += late
		g.SavedLow += late * (1 - spread)
		g.SavedHigh += late * (1 + spread)
	}
}

// smooth returns a mean in which the new value counts a half.
func smooth(mean, value float64) float64 {
	if mean == 0 {
		return value
	}
	return (mean + value) / 2
}
