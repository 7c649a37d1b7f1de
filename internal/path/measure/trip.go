package measure

import "time"

// Trip holds a subflow's round trips.
type Trip struct {
	least  time.Duration // shortest ever, or when the subflow joined
	latest time.Duration // with the queue
	at     time.Time     // when latest was measured
}

// trusted is the time for which a round trip counts after it was measured.
const trusted = 5 * time.Second

// Take adds one sample: TCP's shortest and smoothed round trips. fresh is set if data of this host was acknowledged
// since the last sample. Otherwise the smoothed one is old.
func (t *Trip) Take(now time.Time, least, smoothed time.Duration, fresh bool) {
	if least > 0 && (t.least == 0 || least < t.least) {
		t.least = least
	}
	if fresh && smoothed > 0 {
		t.latest, t.at = smoothed, now
	}
}

// Base returns the round trip without a queue, or zero if it is unknown.
func (t *Trip) Base() time.Duration { return t.least }

// Now returns the present round trip with its queue. If none was measured recently, it returns the base.
func (t *Trip) Now(now time.Time) time.Duration {
	if t.at.IsZero() || now.Sub(t.at) > trusted {
		return t.least
	}
	return max(t.latest, t.least)
}

// Queue returns the part of the present round trip that is spent in queues.
func (t *Trip) Queue(now time.Time) time.Duration { return t.Now(now) - t.least }
