// Package history keeps what paths carried by the minute and by the hour, and what detours gained. Observer computes it
// from the agent's status, without I/O; Store keeps it in a file of bounded size; Recorder joins both.
package history

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

const (
	// longestGap is the longest time between two observations: a host that slept observed nothing.
	longestGap = time.Minute
	// stillShare is the share of a transfer below which the direct path counts as standing still: below it, what the
	// direct path would have carried alone cannot be told from its rate.
	stillShare = 0.02
	// leastBusy is the rate in bytes per second below which a transfer counts for nothing.
	leastBusy = 10_000
	// spread is how much a path's rate may differ from what it was a moment before.
	spread = 0.15
)

// Observer turns states of the agent into Periods. The zero value has seen nothing.
type Observer struct {
	last    time.Time
	started time.Time // of the agent that was observed
	carried map[pathKey]api.Carried
	conns   map[connKey]*transfer
	period  api.Period
}

type pathKey struct{ kind, waypoint string }

type connKey struct {
	token string
	since int64
}

type subKey struct{ local, remote netip.AddrPort }

// transfer is what is remembered of a connection.
type transfer struct {
	seen    map[subKey][2]uint64
	direct  float64 // last rate of the direct path, in bytes per second
	alone   float64 // its rate while it carried alone; 0: not known
	stalled bool
}

// Observe adds what happened since the last state.
func (o *Observer) Observe(s *api.Status, now time.Time) {
	gap := now.Sub(o.last)
	fresh := o.last.IsZero() || gap <= 0 || gap > longestGap || !o.started.Equal(s.Since)
	if !fresh {
		o.period.Observed += gap.Seconds()
	}
	if s.Client != nil {
		o.paths(s.Client, fresh)
		o.transfers(s.Client, gap, now, fresh)
	}
	o.last, o.started = now, s.Since
}

// Take returns what was observed since it was called last.
func (o *Observer) Take() api.Period {
	p := o.period
	o.period = api.Period{}
	return p
}

func (o *Observer) paths(u *api.Using, fresh bool) {
	old := o.carried
	o.carried = make(map[pathKey]api.Carried, len(u.Counters.Carried))
	for _, c := range u.Counters.Carried {
		k := pathKey{c.Kind, c.Waypoint}
		was := old[k]
		o.carried[k] = c
		if fresh || c.Received < was.Received || c.Sent < was.Sent {
			continue
		}
		add := api.PathUsed{Kind: c.Kind, Waypoint: c.Waypoint, Received: c.Received - was.Received, Sent: c.Sent - was.Sent}
		if add.Received+add.Sent == 0 {
			continue
		}
		addPath(&o.period, add)
		if c.Waypoint != "" {
			o.period.Gained.DetourBytes += add.Received + add.Sent
		}
	}
}

func (o *Observer) transfers(u *api.Using, gap time.Duration, now time.Time, fresh bool) {
	old := o.conns
	o.conns = make(map[connKey]*transfer, len(u.Connections))
	for i := range u.Connections {
		c := &u.Connections[i]
		k := connKey{c.Token, c.Since.UnixNano()}
		t := old[k]
		young := t == nil && !fresh && c.Since.After(o.last)
		if t == nil {
			t = &transfer{}
		}
		long := gap
		if young {
			long = now.Sub(c.Since)
		}
		known := old[k] != nil && !fresh || young
		direct, detours, state := t.moved(c)
		o.conns[k] = t
		for j := range c.Subflows {
			if s := &c.Subflows[j]; s.RTT > 0 && known {
				addPath(&o.period, api.PathUsed{Kind: s.Kind, Waypoint: s.Waypoint, RTT: s.RTT, Samples: 1})
			}
		}
		if known && long > 0 && c.Traffic == api.TrafficBulk {
			t.gain(&o.period.Gained, direct, detours, state, long.Seconds())
		}
	}
}

// moved returns what the direct path and the detours carried since the last call, in the direction in which more was
// carried, and the state of the direct path; empty: there is none.
func (t *transfer) moved(c *api.Connection) (direct, detours float64, state api.SubflowState) {
	seen := make(map[subKey][2]uint64, len(c.Subflows))
	var by [2][2]float64
	for i := range c.Subflows {
		s := &c.Subflows[i]
		k, now := subKey{s.Local, s.Remote}, [2]uint64{s.BytesReceived, s.BytesSent}
		was := t.seen[k]
		seen[k] = now
		over := 1
		if s.Waypoint == "" {
			over, state = 0, s.State
		}
		for way := range now {
			if now[way] >= was[way] {
				by[way][over] += float64(now[way] - was[way])
			}
		}
	}
	t.seen = seen
	way := 0
	if by[1][0]+by[1][1] > by[0][0]+by[0][1] {
		way = 1
	}
	return by[way][0], by[way][1], state
}

// gain adds what a bulk transfer had of its detours in so many seconds.
//
// The direct path alone would have carried at least what it carried beside the detours, and what it carried alone a
// moment before, if both share a bottleneck. While it stands still, it would have carried nothing, and all of what came
// meanwhile later, at its last rate.
func (t *transfer) gain(g *api.Gained, direct, detours float64, state api.SubflowState, seconds float64) {
	total := direct + detours
	rate := direct / seconds
	switch {
	case total < leastBusy*seconds:
		return
	case detours == 0:
		t.alone, t.direct, t.stalled = smooth(t.alone, rate), smooth(t.direct, rate), false
		return
	case direct < stillShare*total:
		if state != api.SubflowBackup && t.direct > 0 { // else it was set aside, or has not begun
			if !t.stalled {
				g.Stalls++
			}
			t.stalled = true
			g.StallTime += seconds
		}
		if known := max(t.direct, t.alone); known > 0 {
			late := total / known
			g.Saved += late
			g.SavedLow += late * (1 - spread)
			g.SavedHigh += late * (1 + spread)
		}
		return
	}
	t.stalled, t.direct = false, smooth(t.direct, rate)
	longer := func(rate float64) float64 { return max(total/rate-seconds, 0) }
	g.Saved += longer(max(rate, t.alone))
	g.SavedHigh += longer(rate * (1 - spread))
	if t.alone > 0 {
		g.SavedLow += longer(max(rate, t.alone) * (1 + spread))
	} // else both may share a bottleneck
}

// smooth returns a mean in which the new value counts a half.
func smooth(mean, value float64) float64 {
	if mean == 0 {
		return value
	}
	return (mean + value) / 2
}
