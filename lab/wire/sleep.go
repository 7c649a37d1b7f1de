package wire

import "time"

// sleeper decides how long to sleep before a deadline. Waking up takes the
// machine tens of microseconds, so it sleeps less and polls for the rest, on
// links that are lightly used. On busy ones that would change nothing, and the
// hosts' programs need the processor too.
type sleeper struct {
	sent int64 // when a packet was delivered last
}

const (
	pollAhead = int64(50 * time.Microsecond)
	// pollApart is how far from the packet before one must be to be polled for: so no
	// more than one part in pollShare of the time is spent polling.
	pollApart = pollShare * pollAhead
	pollShare = 16
	// longest is for when there is no deadline.
	longest = int64(time.Hour)
)

// until returns how long to sleep, in nanoseconds: 0 is to poll once and ask
// again.
func (s *sleeper) until(now, deadline int64) int64 {
	left := max(deadline-now, 0)
	switch {
	case left > longest:
		return longest
	case deadline-s.sent < pollApart:
		return left
	case left > pollAhead:
		return left - pollAhead
	}
	return 0
}
