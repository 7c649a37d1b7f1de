package path

import (
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file bounds the rate that this host's bulk connections receive over a path on which its messages wait in a
// queue. A bound a little below what the path carries lets the queue drain at little cost to bulk traffic. Packets above the
// bound are marked (ECN). Only subflows whose ends agreed on ECN get a bound, because others would lose packets. Marked
// subflows lose packets only if the sender ignores the marks for seconds. Messages first move to a path without a queue
// (messages.go), so bounds apply only if every path has one.
//
// Messages that began during the bulk traffic have seen no round trip without the queue. For them, the shortest round trip in
// the history counts, or else the bulk traffic's own queue. Both may be wrong: the path may have changed, or the bulk traffic
// may wait elsewhere. Other hosts may cause the queue, too. In all these cases the queue stays, or returns, under the bound. Then
// the bound ends and is not tried again for a while.

const (
	// disturbsFrom is the least queue that disturbs messages.
	disturbsFrom = 10 * time.Millisecond
	// disturbsShare is the least queue that disturbs messages, as a share of the round trip without it.
	disturbsShare = 0.25
	// boundsAfter is the time for which messages must have waited before a bound begins.
	boundsAfter = 4 * time.Second
	// boundWorksIn is the time within which a bound must have halved the queue of the messages that waited longest.
	boundWorksIn = 5 * time.Second
	// boundTo is the share of its rate that a bulk subflow keeps. While the queue does not stay small, the bound falls
	// to that share of what arrives every boundStep.
	boundTo = 0.85
	// boundGrows is the factor by which the bound grows every boundStep while the queue stays small.
	boundGrows = 1.05
	// boundStep is the time between two changes of a bound.
	boundStep = 5 * time.Second
	// mostFalls is the number of times in a row that the bound may fall without making the queue small.
	mostFalls  = 3
	leastBound = 200e3 // in bits a second
	// wholePacket is the size of a packet relative to its payload.
	wholePacket = 1500. / 1400
	// boundOutlasts is the time without messages after which a bound ends.
	boundOutlasts = 10 * time.Second
	// unboundFor is the time for which no bound is tried after one that did not help. It doubles each time, up to
	// unboundLongest.
	unboundFor     = time.Minute
	unboundLongest = time.Hour
)

// Bound bounds the rate at which a subflow receives, in bits of IP packets a second. Rate 0 ends the bound. If the
// subflow no longer exists, that is not an error.
type Bound struct {
	Ends Ends
	Rate float64
}

func (Bound) action() {}

// pathUse describes the present use of one path, which is named by its waypoint or "" for the direct path.
type pathUse struct {
	messages []messenger // subflows with messages in the last second
	bulk     []*subflow  // subflows that receive bulk traffic and may have a bound
}

// messenger is a subflow with messages. known is the shortest round trip there in the history; zero: unknown.
type messenger struct {
	*subflow
	known time.Duration
}

// delay is the wait of a subflow's messages in a queue.
type delay struct {
	subflow     *subflow // nil: there are no messages
	trip, queue time.Duration
}

// bounded holds the state of one path's bound.
type bounded struct {
	waits   time.Time // since when messages wait without a bound; zero: they do not
	since   time.Time // start of the bound; zero: there is none
	before  delay     // the longest delay at the start of the bound
	worked  bool      // whether the queue became small under the bound
	changed time.Time // when the rates last changed
	falls   int       // changes in a row that lowered the bound
	heard   time.Time // when messages were last seen
	flows   []boundFlow
	until   time.Time // no bound until then
	times   int       // bounds in a row that did not help
}

type boundFlow struct {
	subflow *subflow
	ends    Ends
	rate    float64
}

// bounds holds the paths on which bulk traffic disturbs or disturbed messages.
type bounds struct {
	paths   map[string]*bounded // by waypoint; "" is the direct path
	checked time.Time
}

// boundBulk brings the bounds up to date, once a second.
func (m *Manager) boundBulk(now time.Time) {
	if !m.cfg.ByWorth || now.Sub(m.bounds.checked) < time.Second {
		return
	}
	m.bounds.checked = now
	uses := m.pathUses(now)
	for path, use := range uses {
		if m.bounds.paths[path] == nil && use.delay(now).disturbs() {
			m.bounds.paths[path] = &bounded{}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(m.bounds.paths)) {
		b, use := m.bounds.paths[path], uses[path]
		if use == nil {
			use = &pathUse{}
		}
		if b.since.IsZero() {
			b.consider(use, use.delay(now), now, &m.out)
		} else {
			b.follow(use, now, &m.out)
		}
		if b.since.IsZero() && b.waits.IsZero() && now.Sub(b.until) > unboundLongest {
			delete(m.bounds.paths, path)
		}
	}
}

// pathUses returns the present use of the paths that carry messages or bulk traffic.
func (m *Manager) pathUses(now time.Time) map[string]*pathUse {
	uses := make(map[string]*pathUse)
	for _, c := range m.conns.watched {
		if c.kind == measure.Short {
			continue
		}
		t := m.turn(c, now)
		for _, s := range c.subflows {
			if !t.ours(s) || s.backup || s.habits == nil || now.Sub(s.at) > closeGap {
				continue
			}
			use := uses[s.waypoint()]
			if use == nil {
				use = &pathUse{}
				uses[s.waypoint()] = use
			}
			m.addTo(use, t, s)
		}
	}
	return uses
}

// addTo adds a subflow to the use of its path.
func (m *Manager) addTo(u *pathUse, t turn, s *subflow) {
	switch t.kind {
	case measure.Messages:
		if t.now.Sub(s.moved) > time.Second {
			return
		}
		x := messenger{subflow: s}
		if r, _ := m.detours.history.of(s.waypoint(), t.server); r.hasTrip(t.now) {
			x.known = r.trip
		}
		u.messages = append(u.messages, x)
	case measure.Bulk:
		if send, receive := s.habits.goodput.Rates(t.now); s.habits.ecn && receive > send {
			u.bulk = append(u.bulk, s)
		}
	default:
	}
}

// disturbs reports whether messages wait so long that it matters.
func (d delay) disturbs() bool {
	return d.queue >= disturbsFrom && float64(d.queue) >= disturbsShare*float64(d.trip-d.queue)
}

// delayAgainst returns how long the subflow's messages wait in a queue, if base is the round trip without one.
func (s messenger) delayAgainst(base time.Duration, now time.Time) delay {
	trip := s.habits.trip.Now(now)
	return delay{s.subflow, trip, max(0, trip-base)}
}

// delay returns how long the subflow's messages wait in a queue, against the shortest round trip that the subflow had.
func (s messenger) delay(now time.Time) delay { return s.delayAgainst(s.habits.trip.Base(), now) }

// delay returns the longest wait of messages on a path without a bound. A subflow that shows no queue may never have had a
// round trip without one. So its round trip is also compared with the shortest one in the history, and with the queue of bulk
// traffic that began before it.
func (u *pathUse) delay(now time.Time) (longest delay) {
	for _, s := range u.messages {
		d := s.delay(now)
		if !d.disturbs() && s.known > 0 {
			d = s.delayAgainst(min(s.known, s.habits.trip.Base()), now)
		}
		// Messages that wait in the bulk traffic's queue have a round trip at least as long as that.
		if queue := u.queueBefore(s.subflow); !d.disturbs() && s.habits.trip.Measured(now) && float64(queue) <= (1+disturbsShare)*float64(d.trip) {
			d.queue = max(d.queue, min(queue, d.trip))
		}
		if longest.subflow == nil || d.queue > longest.queue {
			longest = d
		}
	}
	return longest
}

// queueBefore returns the longest queue of the bulk subflows that began before s.
func (u *pathUse) queueBefore(s *subflow) (queue time.Duration) {
	for _, x := range u.bulk {
		if x.since.Before(s.since) {
			queue = max(queue, x.queue())
		}
	}
	return queue
}

// disturbed reports whether messages surely wait in a queue: their own subflow had a shorter round trip before.
func (u *pathUse) disturbed(now time.Time) bool {
	return slices.ContainsFunc(u.messages, func(s messenger) bool { return s.delay(now).disturbs() })
}

// follow brings the bound of one path up to date.
func (b *bounded) follow(use *pathUse, now time.Time, out *actions) {
	if len(use.messages) > 0 {
		b.heard = now
	}
	b.worked = b.worked || slices.ContainsFunc(use.messages, func(s messenger) bool {
		trip := &s.habits.trip
		return s.subflow == b.before.subflow && trip.Measured(now) && b.before.trip-trip.Now(now) >= b.before.queue/2
	})
	change, disturbed := now.Sub(b.changed) >= boundStep, use.disturbed(now)
	switch {
	case now.Sub(b.heard) > boundOutlasts || len(use.bulk) == 0:
		b.end(out)
		return
	case !b.worked && len(use.messages) > 0 && now.Sub(b.since) >= boundWorksIn, change && disturbed && b.falls == mostFalls:
		// The subflow that could show that the bound works may be gone. Other messages do not show it.
		b.until = now.Add(doubled(unboundFor, b.times, unboundLongest))
		b.times++
		b.end(out)
		return
	case b.worked:
		b.times = 0
	}
	b.keepTo(use.bulk, out)
	if change {
		b.changed = now
		if disturbed {
			b.falls++
		} else {
			b.falls = 0
		}
	}
	for _, s := range use.bulk {
		i := slices.IndexFunc(b.flows, func(f boundFlow) bool { return f.subflow == s })
		switch _, receive := s.habits.goodput.Rates(now); {
		case i < 0:
			b.flows = append(b.flows, boundFlow{subflow: s, ends: Ends{s.local, s.remote}})
			b.set(len(b.flows)-1, boundTo*wholePacket*receive, out)
		case change && disturbed:
			b.set(i, min(b.flows[i].rate, boundTo*wholePacket*receive), out)
		case change:
			b.set(i, boundGrows*b.flows[i].rate, out)
		}
	}
}

// consider begins a bound if messages have waited for boundsAfter.
func (b *bounded) consider(use *pathUse, longest delay, now time.Time, out *actions) {
	switch {
	case !longest.disturbs() || len(use.bulk) == 0 || now.Before(b.until):
		b.waits = time.Time{}
	case b.waits.IsZero():
		b.waits = now
	case now.Sub(b.waits) >= boundsAfter:
		b.waits, b.since, b.changed, b.heard, b.before, b.worked, b.falls = time.Time{}, now, now, now, longest, false, 0
		for _, s := range use.bulk {
			_, receive := s.habits.goodput.Rates(now)
			b.flows = append(b.flows, boundFlow{subflow: s, ends: Ends{s.local, s.remote}})
			b.set(len(b.flows)-1, boundTo*wholePacket*receive, out)
		}
	}
}

// set changes the rate of one flow.
func (b *bounded) set(i int, rate float64, out *actions) {
	f := &b.flows[i]
	f.rate = max(rate, leastBound)
	f.subflow.habits.bound = f.rate
	out.do(Bound{f.ends, f.rate})
}

// keepTo ends the bounds of all flows except those in bulk.
func (b *bounded) keepTo(bulk []*subflow, out *actions) {
	b.flows = slices.DeleteFunc(b.flows, func(f boundFlow) bool {
		gone := !slices.Contains(bulk, f.subflow)
		if gone {
			if f.subflow.habits != nil {
				f.subflow.habits.bound = 0
			}
			out.do(Bound{Ends: f.ends})
		}
		return gone
	})
}

// end ends all bounds of the path.
func (b *bounded) end(out *actions) {
	b.keepTo(nil, out)
	b.since = time.Time{}
}
