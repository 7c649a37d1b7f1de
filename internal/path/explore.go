package path

import "time"

// This file bounds the cost of exploring. There are four kinds of tries:
//
//   - A connection that explores takes a detour that was not measured before those that were (prospect.go).
//   - A bulk connection tries out waypoints (tryout.go).
//   - A detour that was set aside because it lost too much carries again (weigh.go).
//   - A connection without another detour takes one that was silent lately (a last resort, suspension.go). It does not
//     count, and is always allowed, if the connection has no path that works.
//
// What a subflow carries in the first exploresFor of a try counts as the cost of the try. By then it has been
// measured. Once the hour's tries or bytes are used up, connections take only what is known to be good, and lossy and
// silent detours are not tried again, until the hour ends. Tries under way go on, so the bytes may exceed the bound by
// what those carry.

const (
	// ExploreEvery is the period that the bounds apply to.
	ExploreEvery = time.Hour
	// MostTries bounds the tries in a period.
	MostTries = 120
	// MostExplored bounds the bytes of payload in the tries of a period.
	MostExplored = 256 << 20
	// exploresFor is the duration of a try.
	exploresFor = 10 * time.Second
)

// Exploring describes the cost of exploring in the present hour.
type Exploring struct {
	Tries  int
	Bytes  uint64
	Renews time.Time // end of the hour; zero: nothing was explored
	Spent  bool      // no try may begin until then
}

// exploration counts the cost of exploring in the present hour, which begins with its first try.
type exploration struct {
	renews time.Time
	tries  int
	bytes  uint64
}

// may reports whether a try may begin now.
func (e *exploration) may(now time.Time) bool {
	return e.over(now) || e.tries < MostTries && e.bytes < MostExplored
}

// over reports whether the hour is over. If the clock was set back so that the hour would last longer, it is over,
// too.
func (e *exploration) over(now time.Time) bool {
	return !now.Before(e.renews) || e.renews.Sub(now) > ExploreEvery
}

// begin counts a try.
func (e *exploration) begin(now time.Time) {
	if e.over(now) {
		*e = exploration{renews: now.Add(ExploreEvery)}
	}
	e.tries++
}

// carried counts bytes of a subflow that is in a try.
func (e *exploration) carried(bytes uint64, now time.Time) {
	if !e.over(now) {
		e.bytes += bytes
	}
}

func (e *exploration) state(now time.Time) Exploring {
	if e.over(now) {
		return Exploring{}
	}
	return Exploring{Tries: e.tries, Bytes: e.bytes, Renews: e.renews, Spent: !e.may(now)}
}

// explores reports whether the subflow is in a try.
func (s *subflow) explores(now time.Time) bool {
	return s.counted && now.Sub(s.since) < exploresFor ||
		s.aside != nil && !s.aside.tried.IsZero() && now.Sub(s.aside.tried) < exploresFor
}

// tryAgain lets lossy subflows carry again that were set aside until now. Once the hour's tries are used up, detours
// wait for the next hour.
func (m *Manager) tryAgain(t turn) {
	e := &m.detours.exploration
	for _, s := range t.subflows {
		switch {
		case !s.isLossy() || t.now.Before(s.aside.until):
		case s.detour == nil:
			t.carryAgain(s)
		case e.may(t.now):
			e.begin(t.now)
			s.aside.tried = t.now
			t.carryAgain(s)
		default:
			s.aside.until = e.renews
		}
	}
}
