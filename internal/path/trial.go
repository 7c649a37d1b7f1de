package path

import (
	"net/netip"
	"slices"
	"time"
)

// Whether an in-band detour works depends on the path to its waypoint: some
// middleboxes take unknown options out of SYNs, which the waypoint then takes
// for its own and resets, and some drop such SYNs. The law:
//
//   - A detour whose join came up is proven. What fails over it then fails
//     towards one server, as over other kinds.
//   - One that is not proven is tried by few connections at once, to different
//     servers; the others take what else there is, and it as soon as it is proven.
//   - When a try does not come up, whatever the reason, the detour rests
//     towards every server. Its connection takes another detour at once.
//   - A proven one rests likewise when it failed towards several servers in a
//     row and came up to none: the path changed under it.
//   - Other culprits, which may be found out later: the waypoint, where it was
//     lost shortly after the failure or leads nobody to that server; the server,
//     where a mapped join through the same waypoint did not come up either.
//
// This is remembered by the detour's ID, which names the path too, while the
// detour is on offer and for longestRest after; not on another network.
const (
	// tryTimeout is joinTimeout for a try. A SYN is repeated after a second
	// (RFC 6298, section 2), so that one that was merely lost has a second chance.
	tryTimeout = 2 * time.Second
	// maxTries bounds those under way at once. One would do, were no server ever
	// out of its waypoint's reach.
	maxTries = 3
	// unprovenAfter is the number of servers, each of which a join over a proven
	// detour did not reach.
	unprovenAfter = 3
	// A rest takes shortestRest, the next one twice as long, up to longestRest.
	shortestRest = 10 * time.Minute
	longestRest  = 2 * time.Hour
	// blamedOnWaypoint is how long a waypoint may have been lost before that is
	// noticed, generously.
	blamedOnWaypoint = 10 * time.Second
)

// trial is what is known of one in-band detour.
type trial struct {
	via    via
	proven bool
	tries  [maxTries]try
	missed []netip.AddrPort // servers that joins since the last one to come up did not reach

	rests        int            // in a row
	since        time.Time      // the first of them
	began, until time.Time      // the last of them
	err          error          // the failure that it began with,
	server       netip.AddrPort // and towards which server
	left         time.Time      // off offer since
}

type try struct {
	server netip.AddrPort
	until  time.Time // its verdict is there at the latest
}

// restsUntil is when a connection to server may take the detour, and what it is
// left alone for until then.
func (t *trial) restsUntil(server netip.AddrPort, now time.Time) (time.Time, Rest) {
	if now.Before(t.until) {
		return t.until, Rest{Cause: RestsBlocked, Since: t.since, Err: t.err}
	}
	if t.proven {
		return time.Time{}, Rest{}
	}
	until := t.tries[0].until
	for _, y := range t.tries {
		if y.server == server && now.Before(y.until) {
			return y.until, Rest{Cause: RestsTried}
		}
		if y.until.Before(until) {
			until = y.until
		}
	}
	return until, Rest{Cause: RestsTried}
}

// begin notes a try.
func (t *trial) begin(server netip.AddrPort, now time.Time) {
	oldest := 0
	for i := range t.tries {
		if t.tries[i].until.Before(t.tries[oldest].until) {
			oldest = i
		}
	}
	t.tries[oldest] = try{server, now.Add(tryTimeout + verdictDelay)}
}

// failed: a join to server did not come up, for which the detour as a whole may
// rest.
func (t *trial) failed(server netip.AddrPort, err error, now time.Time) {
	if now.Before(t.until) {
		return // another try failed before
	}
	if t.proven {
		if !slices.Contains(t.missed, server) {
			t.missed = append(t.missed, server)
		}
		if len(t.missed) < unprovenAfter {
			return
		}
	}
	if now.Sub(t.until) > longestRest {
		t.rests = 0
	}
	if t.rests++; t.rests == 1 {
		t.since = now
	}
	t.proven, t.missed, t.err, t.server = false, nil, err, server
	t.began, t.until = now, now.Add(min(shortestRest<<min(t.rests-1, 4), longestRest))
}

// forgive takes the rest that there is back: the failure was not the path's.
func (t *trial) forgive(now time.Time) {
	if now.Before(t.until) {
		t.until = time.Time{}
		t.rests--
	}
}

// trialOf is the memory of a detour that is on offer; nil: it needs none.
func (m *Manager) trialOf(d *Detour) *trial {
	if d.Kind != InBand {
		return nil
	}
	t := m.trials[d.ID]
	if t == nil {
		t = &trial{}
		m.trials[d.ID] = t
	}
	t.via, t.left = d.via(), time.Time{}
	return t
}

// cameUp: a join over d did. If that proves it, all that are short of a detour
// may take it.
func (m *Manager) cameUp(d *Detour) {
	if t := m.trials[d.ID]; t != nil {
		m.woken = m.woken || !t.proven
		t.proven, t.missed, t.rests, t.until = true, nil, 0, time.Time{}
	}
}

// wake lets those that are short of a detour look again.
func (m *Manager) wake(now time.Time) {
	m.woken = false
	var short []*conn
	for _, c := range m.conns {
		if c.short {
			short = append(short, c)
		}
	}
	slices.SortFunc(short, byAge)
	for _, c := range short {
		m.step(c, now)
	}
}

// learn is what the end of a subflow says about in-band detours besides that a
// route failed: something if it was a join on this network that did not come up.
func (m *Manager) learn(e ended, server netip.AddrPort, now time.Time) {
	if e.up || e.unsent || e.network != m.network || !m.here(e.subflow) {
		return
	}
	v := e.detour.via()
	if e.detour.Kind == Mapped {
		m.exonerate(v, server, now)
		return
	}
	t := m.trials[e.detour.ID]
	if _, lost := m.lost[v]; t == nil || lost || m.retries[route{e.detour.ID, server}].refused {
		return
	}
	t.failed(server, e.err, now)
}

// exonerate: no mapped join through the waypoint reaches the server either. If
// that is what made an in-band one rest, the path is not to blame.
func (m *Manager) exonerate(v via, server netip.AddrPort, now time.Time) {
	for _, t := range m.trials {
		if t.via == v && t.server == server && now.Before(t.until) {
			t.forgive(now)
			m.woken = true
		}
	}
}

// forgive: the waypoint is lost, and was perhaps for a while.
func (m *Manager) forgive(v via, now time.Time) {
	for _, t := range m.trials {
		if t.via == v {
			t.missed = nil
			if now.Sub(t.began) < blamedOnWaypoint {
				t.forgive(now)
			}
		}
	}
}

// serverRefused: no detour of the waypoint leads there, so none is tried until
// after the waypoint was asked again.
func (m *Manager) serverRefused(ev ServerRefused, now time.Time) {
	v := via{ev.Waypoint, ev.Addr}
	for _, o := range m.general {
		if o.via() != v {
			continue
		}
		m.retries[route{o.ID, ev.Server}] = retry{failures: 1, at: now.Add(ev.For + longestBackoff), err: ev.Err, refused: true}
		if t := o.trial; t != nil {
			t.missed = slices.DeleteFunc(t.missed, func(s netip.AddrPort) bool { return s == ev.Server })
			if t.server == ev.Server {
				m.woken = m.woken || now.Before(t.until)
				t.forgive(now)
			}
		}
	}
}

// forgetTrials: on another network nothing is known any more.
func (m *Manager) forgetTrials() {
	clear(m.trials)
	for _, o := range m.detours {
		o.trial = m.trialOf(&o.Detour)
	}
}
