package measure

import "time"

// Trip holds a subflow's round trips.
type Trip struct {
	least  time.Duration // shortest ever, or when the subflow joined
	latest time.Duration // with the queue
	until  time.Time     // when latest no longer counts
	probed time.Duration // of the latest probe; zero: none was answered

	received time.Duration // longest that data showed since the time since; zero: none
	since    time.Time
}

const (
	// trusted is the time for which a round trip counts after data showed it.
	trusted = 5 * time.Second
	// probeTrusted is the time for which a round trip counts after a probe showed it. It spans two probes of an idle
	// subflow.
	probeTrusted = 10 * time.Second
	// probeError is the most by which a probe's round trip may be wrong. The kernel counts in ticks of up to 4 ms, and the
	// caller knows the moments of the probe and of the samples only to some milliseconds.
	probeError = 10 * time.Millisecond
	// receivedFor is the time for which received data must show a round trip.
	receivedFor = time.Second
)

// Take adds one sample: TCP's shortest and smoothed round trips. fresh is set if data of this host was acknowledged
// since the last sample. Otherwise the smoothed one is old.
func (t *Trip) Take(now time.Time, least, smoothed time.Duration, fresh bool) {
	t.lower(least)
	if fresh && smoothed > 0 {
		t.latest, t.until = smoothed, now.Add(trusted)
	}
}

// TakeProbe adds the round trip of a probe on an idle subflow. If it exceeds the base by no more than probeError, the base
// counts as the present round trip. If two probes in a row took less than the base, the subflow joined while there was a
// queue, and the base is lowered. A single one may be a coincidence: a segment that the peer sent by itself just then.
func (t *Trip) TakeProbe(now time.Time, took time.Duration) {
	if t.probed > 0 {
		t.lower(max(t.probed, took) + probeError)
	}
	t.probed = took
	t.latest, t.until = took, now.Add(probeTrusted)
	if took <= t.least+probeError {
		t.latest = t.least
	}
}

// TakeReceived adds one sample of a subflow on which data arrived: the round trip that TCP measures as a receiver, with
// timestamps. The subflow may have joined while there was a queue, and a host that only receives has no other measure. The
// longest round trip of a second counts. Single ones may be too short: TCP also takes the time in which a receive window
// fills, and the acknowledgement that opened the window may have left on another subflow.
func (t *Trip) TakeReceived(now time.Time, took time.Duration) {
	if t.received == 0 {
		t.since = now
	}
	t.received = max(t.received, took)
	if now.Sub(t.since) >= receivedFor {
		t.lower(t.received)
		t.received = 0
	}
}

// lower records a round trip that may be the shortest.
func (t *Trip) lower(least time.Duration) {
	if least > 0 && (t.least == 0 || least < t.least) {
		t.least = least
	}
}

// Base returns the round trip without a queue, or zero if it is unknown.
func (t *Trip) Base() time.Duration { return t.least }

// Measured reports whether the round trip was measured recently.
func (t *Trip) Measured(now time.Time) bool { return !now.After(t.until) }

// Now returns the present round trip with its queue. If none was measured recently, it returns the base.
func (t *Trip) Now(now time.Time) time.Duration {
	if !t.Measured(now) {
		return t.least
	}
	return max(t.latest, t.least)
}
