// Package history records what each path carried and what detours gained, by minute and by hour.
//
// Recorder requests the agent's status every few seconds. Observer compares two states, without I/O, and computes
// Periods. Store keeps them in a file of bounded size.
//
//	recorder.go               the loop; answers requests for the history
//	observe.go                what happened between two states
//	transfer.go               what a connection gained from detours
//	bottleneck.go             whether the direct path has a bottleneck of its own
//	minutes.go                which minute what was observed belongs to
//	merge.go                  adding up periods
//	handover.go               what an agent leaves to the next one
//	store.go pages.go         the file, and the check that it is whole
package history

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// longestGap is the longest time between two observations that are compared. After a longer gap, the host probably
// slept.
const longestGap = time.Minute

// unknownKind is the kind of a subflow that existed when the agent started, until the agent knows its path.
const unknownKind = "unknown"

// Observer turns states of the agent into Periods of a minute each. The zero value has observed nothing.
type Observer struct {
	last    time.Time
	before  time.Time // when the state before the last was observed
	started time.Time // when the observed agent started; zero: nothing was observed yet, or by another Observer
	left    map[string]leftTransfer
	carried map[pathKey]api.Carried
	conns   map[connKey]*transfer
	from    time.Time // the observation that is being added began then, by the present clock
	seen    byMinute
}

type pathKey struct{ kind, waypoint string }

type connKey struct {
	token string
	since int64
}

// Observe adds what happened between the last state and s.
func (o *Observer) Observe(s *api.Status, now time.Time) {
	gap := now.Sub(o.last)
	o.from = now.Add(-gap) // and not o.last: the clock may have been set since
	resumes := o.started.IsZero()
	fresh := o.last.IsZero() || gap <= 0 || gap > longestGap || !resumes && !o.started.Equal(s.Since)
	if !fresh {
		took := min(gap, now.Sub(s.Since))
		o.seen.add(api.Period{Observed: took.Seconds()}, now.Add(-took), now)
	}
	if s.Client != nil {
		o.paths(s.Client, now, fresh || resumes)
		o.transfers(s.Client, now, fresh)
	}
	if o.before = o.last; fresh || resumes {
		o.before = now
	}
	o.last, o.started, o.left = now, s.Since, nil
}

// Take returns what was observed since the last call of Take, by the minute, the earliest first. What only became known
// since then may be about earlier minutes.
func (o *Observer) Take() []api.Period {
	seen := o.seen
	o.seen = nil
	return seen
}

func (o *Observer) paths(u *api.Using, now time.Time, fresh bool) {
	old := o.carried
	o.carried = make(map[pathKey]api.Carried, len(u.Counters.Carried))
	for _, c := range u.Counters.Carried {
		k := pathKey{c.Kind, c.Waypoint}
		was := old[k]
		o.carried[k] = c
		if fresh || c.Received < was.Received || c.Sent < was.Sent {
			continue
		}
		o.carry(api.PathUsed{Kind: c.Kind, Waypoint: c.Waypoint, Received: c.Received - was.Received, Sent: c.Sent - was.Sent}, now)
	}
}

// carry adds what a path carried since the last state.
func (o *Observer) carry(add api.PathUsed, now time.Time) {
	if add.Received+add.Sent == 0 {
		return
	}
	p := api.Period{Paths: []api.PathUsed{add}}
	if add.Waypoint != "" {
		p.Gained.DetourBytes = add.Received + add.Sent
	}
	o.seen.add(p, o.from, now)
}

func (o *Observer) transfers(u *api.Using, now time.Time, fresh bool) {
	var seen []observation
	old := o.conns
	o.conns = make(map[connKey]*transfer, len(u.Connections))
	for i := range u.Connections {
		c := &u.Connections[i]
		k := connKey{c.Token, c.Since.UnixNano()}
		t := old[k]
		if t == nil {
			t = o.begin(c)
		}
		delete(old, k)
		o.conns[k] = t
		t.bulk, t.short = c.Traffic == api.TrafficBulk, c.Traffic == api.TrafficShort
		if fresh {
			t.forget()
		} else if o.catchUp(t, c, now); slices.ContainsFunc(c.Subflows, func(s api.Subflow) bool { return s.Kind == unknownKind }) {
			continue // observed with the next state, if the path is known by then
		}
		if x, ok := o.observe(t, c, now); ok {
			seen = append(seen, x)
		}
	}
	o.take(seen)
	ended := make(map[string]time.Time, len(u.Ended))
	for _, e := range u.Ended {
		ended[e.Token] = e.At
	}
	for k, t := range old {
		if fresh {
			t.forget()
		} else if at, ok := ended[k.token]; ok && at.After(t.at) {
			t.end(at.Sub(t.at).Seconds())
		}
		t.finish(&o.seen)
	}
}

// begin returns the transfer of a connection that was not observed yet.
func (o *Observer) begin(c *api.Connection) *transfer {
	if o.left != nil {
		return o.resumed(c)
	}
	// All data of a young connection is new. Such a connection may be missing in the first state after its start,
	// because it had carried nothing yet. Therefore it is compared with the state before the last.
	if c.Since.After(o.before) {
		return &transfer{at: c.Since}
	}
	return &transfer{}
}

// observation has what the paths of a transfer carried between two states, and the waits in their queues.
type observation struct {
	*transfer
	server netip.Addr
	moved  stretch
	waits  waits
}

// pool has the rates of transfers in bytes per second, and the waits on their paths.
type pool struct {
	direct, detours float64
	waits           waits
}

func (p *pool) add(x observation) {
	p.direct += x.moved.direct / x.moved.seconds
	p.detours += x.moved.detours / x.moved.seconds
	if x.waits.known[1] {
		p.waits = x.waits
	}
}

// take adds the observations of all transfers. Of the seconds in which several transfers ran, each gets a part in
// proportion to its bytes.
//
// Transfers with one server share the direct path to it, in unequal parts if their detours differ. Without detours they
// would divide it anew, and get as much in all. So each is compared with what all of them got. It is not known whether
// transfers with different servers share a bottleneck.
func (o *Observer) take(seen []observation) {
	all, servers, among, bytes := pool{}, make(map[netip.Addr]*pool), 0, 0.0
	for _, x := range seen {
		if !x.counts(x.moved) {
			continue
		}
		bytes += x.moved.bytes()
		among++
		all.add(x)
		if servers[x.server] == nil {
			servers[x.server] = &pool{}
		}
		servers[x.server].add(x)
	}
	for _, x := range seen {
		m := &x.moved
		m.among, m.detoured = among, all.detours > 0
		m.still = m.detours > 0 && m.direct < stillShare*m.bytes()
		m.even = m.direct
		if x.counts(*m) {
			m.once = m.seconds * m.bytes() / bytes
			p := servers[x.server]
			m.direct, m.detours = p.direct*m.seconds, p.detours*m.seconds
			m.even = m.bytes() * all.direct / (all.direct + all.detours)
			if !x.waits.known[1] {
				x.waits = p.waits
			}
		}
		x.transfer.take(&o.seen, *m, x.waits)
	}
}

// observe returns what one connection did since it was last observed. ok is false if that is not known.
func (o *Observer) observe(t *transfer, c *api.Connection, now time.Time) (x observation, ok bool) {
	took := now.Sub(t.at)
	known := !t.at.IsZero() && took > 0
	m, w := t.moved(c)
	if t.at = now; !known {
		t.open = stretch{}
		return x, false
	}
	m.seconds, m.end = took.Seconds(), now
	for i := range c.Subflows {
		if s := &c.Subflows[i]; s.RTT > 0 && s.RTTAge <= observeEvery.Seconds() { // an older one tells nothing of these seconds
			o.seen.add(api.Period{Paths: []api.PathUsed{{Kind: s.Kind, Waypoint: s.Waypoint, RTT: s.RTT, Samples: 1}}}, now, now)
		}
	}
	return observation{t, c.Remote.Addr(), m, w}, true
}

// Open returns what transfers that continue have gained so far, as far as Take has not returned it. For gains that are
// not known yet, it returns the bounds.
func (o *Observer) Open() []api.Period {
	var seen byMinute
	for _, t := range o.conns {
		t.soFar(&seen)
	}
	return seen
}

// Settle counts the gain so far of transfers that continue. It is called when the agent ends.
func (o *Observer) Settle() {
	for _, t := range o.conns {
		t.finish(&o.seen)
	}
}
