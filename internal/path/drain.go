package path

import "time"

// This file tells when a subflow that became a backup has delivered what was queued on it. Then it can end, and nothing
// has to be sent again on another path. Nothing reports that the peer's queue is empty. A receiver only sees that no more
// data comes.

const (
	// drainsLeast is the least time for which the subflow is a backup before its queue has drained. It is longer on
	// long paths, because the peer hears of it later.
	drainsLeast = 200 * time.Millisecond
	// drainsQuiet is the least time without data after which the queue has drained.
	drainsQuiet = 100 * time.Millisecond
)

// isDrained reports whether the subflow, a backup for age, has delivered what was queued on it. After longest it counts as
// drained anyway.
func (s *subflow) isDrained(age, longest time.Duration) bool {
	return age >= longest || age >= max(drainsLeast, s.rtt) && s.isQuiet()
}

// isQuiet reports whether no data is under way on the subflow in either direction, as far as the last sample shows.
func (s *subflow) isQuiet() bool {
	quiet := max(drainsQuiet, s.rtt)
	if s.habits != nil {
		quiet = max(quiet, s.habits.step.trip)
	}
	return s.waiting.IsZero() && !s.hasGap() && s.dry() >= quiet
}
