package measure

import "time"

// Trip holds a subflow's round trips.
type Trip struct {
	least  time.Duration // ever, or when it joined
	latest time.Duration // with the queue
	at     time.Time     // when latest was last known to hold
}

// trusted is the time for which a round trip counts after data last showed it.
const trusted = 5 * time.Second

// Take adds one sample: the least and the smoothed round trip by TCP's own count, and whether they are fresh, which
// they are only if this host's data was acknowledged since the last sample.
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

// Now returns the present round trip with its queue. Where none was measured lately, it is the base.
func (t *Trip) Now(now time.Time) time.Duration {
	if t.at.IsZero() || now.Sub(t.at) > trusted {
		return t.least
	}
	return max(t.latest, t.least)
}

// Queue returns how much of the present round trip is spent waiting in queues.
func (t *Trip) Queue(now time.Time) time.Duration { return t.Now(now) - t.least }
