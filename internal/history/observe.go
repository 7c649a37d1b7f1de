// Package history keeps what paths carried by the minute and by the hour, and what detours gained. Observer computes it
// from the agent's status, without I/O; Store keeps it in a file of bounded size; Recorder joins both.
package history

import (
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// longestGap is the longest time between two observations: a host that slept observed nothing.
const longestGap = time.Minute

// Observer turns states of the agent into Periods. The zero value has seen nothing.
type Observer struct {
	last    time.Time
	before  time.Time // of the state before the last
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
	if o.before = o.last; fresh {
		o.before = now
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
		t, long := old[k], gap
		known := t != nil && !fresh
		if t == nil {
			t = &transfer{}
			// All that a young connection carried is new. It may be missing in the state that follows its beginning,
			// because nothing has moved yet.
			if known = !fresh && c.Since.After(o.before); known {
				long = now.Sub(c.Since)
			}
		}
		delete(old, k)
		o.conns[k] = t
		t.bulk, t.short = c.Traffic == api.TrafficBulk, c.Traffic == api.TrafficShort
		m := t.moved(c)
		m.seconds = long.Seconds()
		if !known || long <= 0 {
			t.open = stretch{}
			continue
		}
		for j := range c.Subflows {
			if s := &c.Subflows[j]; s.RTT > 0 {
				addPath(&o.period, api.PathUsed{Kind: s.Kind, Waypoint: s.Waypoint, RTT: s.RTT, Samples: 1})
			}
		}
		t.take(&o.period.Gained, m)
	}
	if fresh {
		return
	}
	ended := make(map[string]time.Time, len(u.Ended))
	for _, e := range u.Ended {
		ended[e.Token] = e.At
	}
	for k, t := range old {
		if at, ok := ended[k.token]; ok && at.After(o.last) {
			t.end(at.Sub(o.last).Seconds())
		}
		t.settle(&o.period.Gained)
	}
}

// Settle counts the gain of transfers that go on, for what was observed of them until now. It is called at the end.
func (o *Observer) Settle() {
	for _, t := range o.conns {
		t.settle(&o.period.Gained)
	}
}
