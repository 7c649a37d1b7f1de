package emulink

import "time"

// sleeper decides how long to sleep before a deadline. Waking up takes tens of microseconds. On lightly used
// links it therefore wakes up early and polls for the rest. On busy links polling gains little, and the
// hosts' programs need the processor. There, packets due at almost the same time are delivered together, some
// early and some late.
type sleeper struct {
	sent int64 // when the last packet was delivered
}

const (
	pollAhead = int64(50 * time.Microsecond)
	// pollApart is the smallest gap before a packet that is polled for. It limits polling to one part in
	// pollShare of the time.
	pollApart = pollShare * pollAhead
	pollShare = 16
	// together bounds how early or late a packet may be delivered on a busy link. A full packet takes ten
	// times as long on a link of 10 Mbit/s. The bound is at most one part in delayShare of the link's delay,
	// so that the packet has always left the transmitter.
	together   = int64(100 * time.Microsecond)
	delayShare = 10
	// longest is the time to sleep without a deadline.
	longest = int64(time.Hour)
)

// until returns the time to sleep, in nanoseconds, to be awake at moment. 0 means: poll once and call until again.
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

// ready reports whether a packet due at due may be delivered now. On a busy link, it may be up to slack
// early.
func (s *sleeper) ready(now, due, slack int64) bool {
	return due <= now || due <= now+slack && s.busy(due)
}

// latest returns the last moment at which to deliver a packet due at due.
func (s *sleeper) latest(due, slack int64) int64 {
	if s.busy(due) {
		return due + slack
	}
	return due
}

// busy reports whether moment follows the last delivery too closely to poll for it.
func (s *sleeper) busy(moment int64) bool { return moment-s.sent < pollApart }
