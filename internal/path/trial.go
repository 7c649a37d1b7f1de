package path

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// An in-band detour works only if the path to its waypoint lets its SYNs through. Some middleboxes remove unknown
// options from SYNs. The waypoint then takes the SYN for a connection to itself and resets it. Other middleboxes drop
// such SYNs. Therefore:
//
//   - A detour is proven once a join over it came up. Later failures over it count towards one server, as with other
//     kinds.
//   - An unproven detour is tried by few connections at once, to different servers. The others use other detours
//     until it is proven.
//   - When a try fails for any reason, the detour rests towards every server, and the connection takes another detour
//     at once. The first rests are short if the join was not answered, because its SYN may have been lost in a short
//     outage.
//   - A proven detour rests in the same way after it failed towards several servers in a row and came up to none,
//     because then the path has changed.
//   - A rest ends if another cause is found. The waypoint was at fault if it was lost shortly after the failure, or
//     if it refuses to forward to that server. The server was at fault if a mapped join through the same waypoint
//     failed, too.
//
// Results are stored by the detour's ID, which identifies the path. They are kept while the detour is on offer and
// for longestRest afterwards. A change of network discards them.
const (
	// tryTimeout takes the place of joinTimeout for a try. A SYN is repeated after a second (RFC 6298, section 2), so
	// a lost one gets a second chance.
	tryTimeout = 2 * time.Second
	// maxTries bounds concurrent tries until one has failed. One try would do if every waypoint could reach every
	// server.
	maxTries = 3
	// unprovenAfter is the number of servers towards which joins over a proven detour must have failed before it
	// rests.
	unprovenAfter = 3
	// lostRest is the first rest of a detour whose joins are not answered. The next ones are four times as long each
	// time.
	lostRest = 15 * time.Second
	// lostRests is the number of these short rests. With them, a path that drops the SYNs costs six tries in ten
	// minutes.
	lostRests = 3
	// shortestRest is the rest after them, or after a join that was refused. It doubles each time, up to longestRest.
	shortestRest = 10 * time.Minute
	longestRest  = 2 * time.Hour
	// blamedOnWaypoint generously bounds the time for which the loss of a waypoint may go unnoticed.
	blamedOnWaypoint = 10 * time.Second
)

// trial holds the results of one in-band detour.
type trial struct {
	via    via
	proven bool
	tries  [maxTries]try
	missed []netip.AddrPort // servers to which joins failed since the last join that came up

	rests        int            // rests in a row
	step, before int            // steps for restFor: of the last rest and of the one before
	since        time.Time      // start of the first rest
	began, until time.Time      // start and end of the last rest
	err          error          // the failure that started the last rest
	server       netip.AddrPort // the server of that failure
	left         time.Time      // when it went off offer; zero: it is on offer
}

type try struct {
	server netip.AddrPort
	until  time.Time // latest time at which its result is known
}

// restsUntil returns the time from which a connection to server may take the detour, and why not before.
func (t *trial) restsUntil(server netip.AddrPort, now time.Time) (time.Time, policy.Rest) {
	if now.Before(t.until) {
		return t.until, policy.Rest{Cause: policy.RestsBlocked, Since: t.since, Err: t.err}
	}
	if t.proven {
		return time.Time{}, policy.Rest{}
	}
	until := t.tries[0].until
	for _, y := range t.tries {
		if y.server == server && now.Before(y.until) {
			return y.until, policy.Rest{Cause: policy.RestsTried}
		}
		if y.until.Before(until) != (t.rests > 0) { // after a rest there is one try at a time
			until = y.until
		}
	}
	return until, policy.Rest{Cause: policy.RestsTried}
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

// tried reports whether a try began.
func (t *trial) tried() bool { return t.tries != [maxTries]try{} }

// failed records that a join to server failed. The detour may then rest for all servers.
func (t *trial) failed(server netip.AddrPort, err error, now time.Time) {
	lost := errors.Is(err, errNoAnswer)
	if now.Before(t.until) { // the detour rests already, because another try failed
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

// restFor returns the duration of a rest. Steps up to lostRests are the short rests.
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

// refused records that the waypoint does not forward to server. So the path did not cause the failure of a join to
// it. It reports whether the detour rested because of that failure.
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
	t.via, t.left = viaOf(d), time.Time{}
	return t
}

// cameUp records that a join came up. It reports whether that proves its detour, which was unproven.
func (ts trials) cameUp(s *subflow) (proves bool) {
	if s.detour == nil || ts[s.detour.ID] == nil {
		return false
	}
	t := ts[s.detour.ID]
	proves = !t.proven
	t.proven, t.missed, t.rests, t.step, t.until = true, nil, 0, 0, time.Time{}
	return proves
}

// exonerate handles the failure of a mapped join through the waypoint to the server. If an in-band detour rests
// because of a failure towards that server, its path is not at fault, and the rest ends. It reports whether there was
// one.
func (ts trials) exonerate(v via, server netip.AddrPort, now time.Time) (rested bool) {
	for _, t := range ts {
		if t.via == v && t.server == server && now.Before(t.until) {
			t.forgive(now)
			rested = true
		}
	}
	return rested
}

// waypointLost ends rests that the loss of a waypoint explains, because the loss may have begun before the failures.
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

// forget drops the results of detours that have been off offer for longestRest.
func (ts trials) forget(now time.Time) {
	maps.DeleteFunc(ts, func(_ DetourID, t *trial) bool { return !t.left.IsZero() && now.Sub(t.left) > longestRest })
}
