package path

import (
	"errors"
	"maps"
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
//     connection takes another detour at once. The first rests are short if the join was not
//     answered, as its SYN may have been lost in a fault that is over soon.
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
	// maxTries bounds concurrent tries until one has failed. One would do if every waypoint could reach every server.
	maxTries = 3
	// unprovenAfter is the number of servers to which a join over a proven detour must have failed.
	unprovenAfter = 3
	// While joins are not answered, there are lostRests short rests: lostRest, and then four times as long each time.
	// So a path that drops the SYNs costs six tries in ten minutes. After that, or when a join was refused, a rest takes
	// shortestRest, each further one twice as long, up to longestRest.
	lostRest     = 15 * time.Second
	lostRests    = 3
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
	step, before int            // of restFor, of the last rest and of the one before
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
		if y.until.Before(until) != (t.rests > 0) { // after a rest, one try at a time
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
	lost := errors.Is(err, errNoAnswer)
	if now.Before(t.until) { // another try failed before
		if !lost && t.step <= lostRests {
			t.step, t.err, t.server = lostRests+1, err, server
			t.until = now.Add(restFor(t.step))
		}
		return
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
		t.rests, t.step = 0, 0
	}
	if t.rests++; t.rests == 1 {
		t.since = now
	}
	t.before = t.step
	if t.step++; !lost {
		t.step = max(t.step, lostRests+1)
	}
	t.proven, t.missed, t.err, t.server = false, nil, err, server
	t.began, t.until = now, now.Add(restFor(t.step))
}

// restFor returns how long a rest takes. Steps up to lostRests are the short ones.
func restFor(step int) time.Duration {
	if step <= lostRests {
		return lostRest << (2 * (step - 1))
	}
	return min(shortestRest<<min(step-lostRests-1, 4), longestRest)
}

// forgive ends the current rest: the path did not cause the failure.
func (t *trial) forgive(now time.Time) {
	if now.Before(t.until) {
		t.until = time.Time{}
		t.rests--
		t.step = t.before
	}
}

// refused records that the waypoint does not forward to server, so the path did not cause the failure
// of a join to it. It reports whether the detour rested because of that.
func (t *trial) refused(server netip.AddrPort, now time.Time) (rested bool) {
	t.missed = slices.DeleteFunc(t.missed, func(s netip.AddrPort) bool { return s == server })
	if t.server != server {
		return false
	}
	rested = now.Before(t.until)
	t.forgive(now)
	return rested
}

// trials holds the trials of all in-band detours.
type trials map[DetourID]*trial

// of returns the trial of a detour on offer, or nil if it needs none.
func (ts trials) of(d *Detour) *trial {
	if d.Kind != InBand {
		return nil
	}
	t := ts[d.ID]
	if t == nil {
		t = &trial{}
		ts[d.ID] = t
	}
	t.via, t.left = d.via(), time.Time{}
	return t
}

// cameUp records that a join came up. It reports whether that proves its detour.
func (ts trials) cameUp(s *subflow) (proves bool) {
	if s.detour == nil || ts[s.detour.ID] == nil {
		return false
	}
	t := ts[s.detour.ID]
	proves = !t.proven
	t.proven, t.missed, t.rests, t.step, t.until = true, nil, 0, 0, time.Time{}
	return proves
}

// exonerate handles the failure of a mapped join through the waypoint to the server. If an in-band
// detour rests because of that server, its path is not at fault. It reports whether there was one.
func (ts trials) exonerate(v via, server netip.AddrPort, now time.Time) (rested bool) {
	for _, t := range ts {
		if t.via == v && t.server == server && now.Before(t.until) {
			t.forgive(now)
			rested = true
		}
	}
	return rested
}

// waypointLost handles the loss of a waypoint, which may have begun some time ago.
func (ts trials) waypointLost(v via, now time.Time) {
	for _, t := range ts {
		if t.via == v {
			t.missed = nil
			if now.Sub(t.began) < blamedOnWaypoint {
				t.forgive(now)
			}
		}
	}
}

// restart discards all results after a change of network.
func (ts trials) restart() {
	for id, t := range ts {
		if t.left.IsZero() {
			*t = trial{via: t.via}
		} else {
			delete(ts, id)
		}
	}
}

// forget drops the results of detours that are off offer for long.
func (ts trials) forget(now time.Time) {
	maps.DeleteFunc(ts, func(_ DetourID, t *trial) bool { return !t.left.IsZero() && now.Sub(t.left) > longestRest })
}
