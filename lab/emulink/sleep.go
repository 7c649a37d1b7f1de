package emulink

import "time"

// sleeper decides how long to sleep before a deadline. Waking up takes the
// machine tens of microseconds, so it sleeps less and polls for the rest, on
// links that are lightly used. On busy ones that would change nothing, and the
// hosts' programs need the processor too: there packets that are due at almost the
// same time go together, some before it and some after.
type sleeper struct {
	sent int64 // when a packet was delivered last
}

const (
	pollAhead = int64(50 * time.Microsecond)
	// pollApart is how far from the packet before one must be to be polled for: so no
	// more than one part in pollShare of the time is spent polling.
	pollApart = pollShare * pollAhead
	pollShare = 16
	// together is how far from its time a packet on a busy wire may be delivered: a full one takes ten
	// times as long on a line of 10 Mbit/s. It is no farther than a part in delayShare of its line's
	// delay, so that it has always left the transmitter.
	together   = int64(100 * time.Microsecond)
	delayShare = 10
	// longest is for when there is no deadline.
	longest = int64(time.Hour)
)

// until returns how long to sleep, in nanoseconds, so as to be awake at a moment: 0 is
// to poll once and ask again.
func (s *sleeper) until(now, moment int64) int64 {
	left := max(moment-now, 0)
	switch {
	case left > longest:
		return longest
	case s.busy(moment):
		return left
	case left > pollAhead:
		return left - pollAhead
	}
	return 0
}

// ready tells whether a packet may be delivered now that is due then, or so much
// before or after if the wire is busy.
func (s *sleeper) ready(now, due, slack int64) bool {
	return due <= now || due <= now+slack && s.busy(due)
}

// latest is when to deliver it at the latest.
func (s *sleeper) latest(due, slack int64) int64 {
	if s.busy(due) {
		return due + slack
	}
	return due
}

// busy tells whether a moment follows the delivery before too closely to be polled for.
func (s *sleeper) busy(moment int64) bool { return moment-s.sent < pollApart }
