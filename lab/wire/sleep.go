package wire

import "time"

// sleeper decides how long to sleep before a deadline. Waking up takes the
// machine tens of microseconds, so it sleeps less and polls for the rest, on
// links that are lightly used. On busy ones that would change nothing, and the
// hosts' programs need the processor too: there packets that are due at almost the
// same time go together, some before it and some after, so that a path is as long
// as it should be.
type sleeper struct {
	sent int64 // when a packet was delivered last
}

const (
	pollAhead = int64(50 * time.Microsecond)
	// pollApart is how far from the packet before one must be to be polled for: so no
	// more than one part in pollShare of the time is spent polling.
	pollApart = pollShare * pollAhead
	pollShare = 16
	// together is how far from its time a packet on a busy link may be delivered. A full one takes
	// ten times as long on a line of 10 Mbit/s.
	together = int64(100 * time.Microsecond)
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
	case s.due(now, deadline):
		return 0
	case s.busy(deadline):
		return left + together
	case left > pollAhead:
		return left - pollAhead
	}
	return 0
}

// due tells whether a packet with this deadline may be delivered now.
func (s *sleeper) due(now, deadline int64) bool {
	return deadline <= now || deadline <= now+together && s.busy(deadline)
}

// busy tells whether the packet with this deadline follows the one before too closely to be polled for.
func (s *sleeper) busy(deadline int64) bool { return deadline-s.sent < pollApart }
