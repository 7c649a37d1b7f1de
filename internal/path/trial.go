package path

import (
	"net/netip"
	"slices"
	"time"
)

// An in-band detour works only if the path to its waypoint lets its SYNs through. Some middleboxes
// remove unknown options from SYNs; the waypoint then takes the SYN for its own and resets it.
// Others drop such SYNs. Therefore:
//
//   - A detour is proven once a join over it came up. Later failures over it count
//     towards one server, as with other kinds.
//   - An unproven detour is tried by few connections at once, to different servers.
//     The others use other detours until it is proven.
//   - When a try fails for any reason, the detour rests towards every server. The
//     connection takes another detour at once.
//   - A proven detour rests in the same way after it failed towards several servers
//     in a row and came up to none: the path has changed.
//   - Other causes may be found out later and end the rest. The waypoint was at fault
//     if it was lost shortly after the failure or refuses to forward to that server.
//     The server was if a mapped join through the same waypoint failed, too.
//
// The results are stored by the detour's ID, which includes the path, while the detour is on offer
// and for longestRest afterwards. A change of network discards them.
const (
	// tryTimeout is joinTimeout for a try. A SYN is repeated after a second (RFC 6298, section 2),
	// so one that was merely lost gets a second chance.
	tryTimeout = 2 * time.Second
	// maxTries bounds concurrent tries. One would do if every waypoint could reach every server.
	maxTries = 3
	// unprovenAfter is the number of servers to which a join over a proven detour must have failed.
	unprovenAfter = 3
	// The first rest takes shortestRest, each further one twice as long, up to longestRest.
	shortestRest = 10 * time.Minute
	longestRest  = 2 * time.Hour
	// blamedOnWaypoint bounds, generously, how long the loss of a waypoint may go unnoticed.
	blamedOnWaypoint = 10 * time.Second
)

// trial records the results of one in-band detour.
type trial struct {
	via    via
	proven bool
	tries  [maxTries]try
	missed []netip.AddrPort // servers to which joins failed since the last one that came up

	rests        int            // consecutive
	since        time.Time      // start of the first
	began, until time.Time      // of the last
	err          error          // failure that started it
	server       netip.AddrPort // and its server
	left         time.Time      // off offer since
}

type try struct {
	server netip.AddrPort
	until  time.Time // when its result is known at the latest
}

// restsUntil returns when a connection to server may take the detour, and why not before.
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

// begin records the start of a try.
func (t *trial) begin(server netip.AddrPort, now time.Time) {
	oldest := 0
	for i := range t.tries {
		if t.tries[i].until.Before(t.tries[oldest].until) {
			oldest = i
		}
	}
	t.tries[oldest] = try{server, now.Add(tryTimeout + verdictDelay)}
}

// failed records that a join to server failed. The detour may rest for all servers because of it.
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

// forgive ends the current rest: the path did not cause the failure.
func (t *trial) forgive(now time.Time) {
	if now.Before(t.until) {
		t.until = time.Time{}
		t.rests--
	}
}

// trialOf returns the trial of a detour on offer, or nil if it needs none.
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

// cameUp records that a join over d came up. If that proves d, all connections short of a detour
// may use it.
func (m *Manager) cameUp(d *Detour) {
	if t := m.trials[d.ID]; t != nil {
		m.woken = m.woken || !t.proven
		t.proven, t.missed, t.rests, t.until = true, nil, 0, time.Time{}
	}
}

// wake lets connections that are short of a detour look for one again.
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

// learn draws conclusions about in-band detours from the end of a subflow, beyond the failure of
// its route. Only joins on this network that did not come up matter.
func (m *Manager) learn(e ended, server netip.AddrPort, now time.Time) {
	if e.up || e.unsent || e.network != m.network || !m.hasSource(e.subflow) {
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

// exonerate handles the failure of a mapped join through the waypoint to the server. If an in-band
// detour rests because of that server, its path is not at fault.
func (m *Manager) exonerate(v via, server netip.AddrPort, now time.Time) {
	for _, t := range m.trials {
		if t.via == v && t.server == server && now.Before(t.until) {
			t.forgive(now)
			m.woken = true
		}
	}
}

// forgive handles the loss of a waypoint, which may have begun some time ago.
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

// serverRefused handles a waypoint's refusal to forward to a server. None of its detours is tried
// for that server until the waypoint was asked again.
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

// forgetTrials discards all results after a change of network.
func (m *Manager) forgetTrials() {
	clear(m.trials)
	for _, o := range m.detours {
		o.trial = m.trialOf(&o.Detour)
	}
}
