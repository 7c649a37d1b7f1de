package path

import (
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file bounds what bulk connections of this host receive over a path on which its messages wait in a queue: a little less
// than the path carries lets the queue become empty, and costs bulk traffic as little. The bound is a mark (ECN) on what exceeds
// it, so only subflows whose ends agreed on ECN get one, and nothing is lost. Messages go first to where there is no queue
// (weigh.go), so a bound is for when every path has one.
//
// The queue may be the work of other hosts. If it stays although the bound holds, the bound ends, and is not tried again for a
// while.

const (
	// A queue disturbs messages if they wait in it for so long, and for this share of the round trip without it.
	disturbsFrom  = 10 * time.Millisecond
	disturbsShare = 0.25
	// A bound begins after messages waited for boundsAfter, and must have halved the queue within boundWorksIn.
	boundsAfter  = 4 * time.Second
	boundWorksIn = 5 * time.Second
	// boundTo is the share of its rate that a bulk subflow keeps. While the queue stays small, the bound grows by boundGrows
	// every boundStep. While it does not, the bound falls to boundTo of what arrives, as often.
	boundTo    = 0.85
	boundGrows = 1.05
	boundStep  = 5 * time.Second
	leastBound = 200e3 // bits a second
	// wholePacket is the ratio of a packet to its payload.
	wholePacket = 1500. / 1400
	// A bound ends when no messages were seen for boundOutlasts.
	boundOutlasts = 10 * time.Second
	// After a bound that did not help, none is tried for unboundFor, which doubles each time up to unboundLongest.
	unboundFor     = time.Minute
	unboundLongest = time.Hour
)

// Bound bounds the rate at which a subflow receives, in bits of IP packets a second. A Rate of 0 ends the bound. A subflow that
// no longer exists is not an error.
type Bound struct {
	Ends Ends
	Rate float64
}

func (Bound) action() {}

// sharing describes the present use of one path: through one waypoint, or the direct one.
type sharing struct {
	messages  bool
	disturbed bool          // they wait in a queue
	queue     time.Duration // the longest
	bulk      []*subflow    // that receive, and may have a bound
}

// bounded holds the state of the bound of one path.
type bounded struct {
	waits   time.Time     // since when messages wait, without a bound; zero: they do not
	since   time.Time     // since when there is a bound; zero: there is none
	before  time.Duration // the queue at that time
	worked  bool          // the queue became small under the bound
	changed time.Time     // when the rates last changed
	heard   time.Time     // when messages were last seen
	flows   []boundFlow
	until   time.Time // no bound until then
	times   int       // how often in a row it did not help
}

type boundFlow struct {
	subflow *subflow
	ends    Ends
	rate    float64
}

// bounds holds the paths on which bulk traffic disturbs messages, or did.
type bounds struct {
	paths   map[string]*bounded // by waypoint; the direct path's is empty
	checked time.Time
}

// boundBulk brings the bounds up to date, once a second.
func (m *Manager) boundBulk(now time.Time) {
	if !m.cfg.ByWorth || now.Sub(m.bounds.checked) < time.Second {
		return
	}
	m.bounds.checked = now
	uses := m.sharings(now)
	for path := range uses {
		if m.bounds.paths[path] == nil && uses[path].disturbed {
			m.bounds.paths[path] = &bounded{}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(m.bounds.paths)) {
		b, use := m.bounds.paths[path], uses[path]
		if use == nil {
			use = &sharing{}
		}
		b.follow(use, now, &m.out)
		if b.since.IsZero() && b.waits.IsZero() && now.Sub(b.until) > unboundLongest {
			delete(m.bounds.paths, path)
		}
	}
}

// sharings returns the use of paths that carry messages or bulk traffic now.
func (m *Manager) sharings(now time.Time) map[string]*sharing {
	uses := make(map[string]*sharing)
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
				use = &sharing{}
				uses[s.waypoint()] = use
			}
			use.add(c.kind, s, now)
		}
	}
	return uses
}

func (u *sharing) add(kind measure.Kind, s *subflow, now time.Time) {
	switch kind {
	case measure.Messages:
		if now.Sub(s.moved) > time.Second {
			return
		}
		queue := s.habits.trip.Queue(now)
		u.messages, u.queue = true, max(u.queue, queue)
		u.disturbed = u.disturbed || queue >= disturbsFrom && float64(queue) >= disturbsShare*float64(s.habits.trip.Base())
	case measure.Bulk:
		if send, receive := s.habits.goodput.Rates(now); s.habits.ecn && receive > send {
			u.bulk = append(u.bulk, s)
		}
	default:
	}
}

// follow brings the bound of one path up to date.
func (b *bounded) follow(use *sharing, now time.Time, out *actions) {
	if use.messages {
		b.heard = now
	}
	if b.since.IsZero() {
		b.consider(use, now, out)
		return
	}
	b.worked = b.worked || !use.disturbed || use.queue <= b.before/2
	switch {
	case now.Sub(b.heard) > boundOutlasts || len(use.bulk) == 0:
		b.end(out)
		return
	case !b.worked && now.Sub(b.since) >= boundWorksIn:
		b.until = now.Add(min(unboundFor<<min(b.times, 10), unboundLongest))
		b.times++
		b.end(out)
		return
	case b.worked:
		b.times = 0
	}
	b.keepTo(use.bulk, out)
	change := now.Sub(b.changed) >= boundStep
	if change {
		b.changed = now
	}
	for _, s := range use.bulk {
		i := slices.IndexFunc(b.flows, func(f boundFlow) bool { return f.subflow == s })
		switch _, receive := s.habits.goodput.Rates(now); {
		case i < 0:
			b.flows = append(b.flows, boundFlow{subflow: s, ends: Ends{s.local, s.remote}})
			b.set(len(b.flows)-1, boundTo*wholePacket*receive, out)
		case change && use.disturbed:
			b.set(i, min(b.flows[i].rate, boundTo*wholePacket*receive), out)
		case change:
			b.set(i, boundGrows*b.flows[i].rate, out)
		}
	}
}

// consider begins a bound if messages have waited for long enough.
func (b *bounded) consider(use *sharing, now time.Time, out *actions) {
	switch {
	case !use.disturbed || len(use.bulk) == 0 || now.Before(b.until):
		b.waits = time.Time{}
	case b.waits.IsZero():
		b.waits = now
	case now.Sub(b.waits) >= boundsAfter:
		b.waits, b.since, b.changed, b.before, b.worked = time.Time{}, now, now, use.queue, false
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

// keepTo ends the bounds of all other flows.
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
