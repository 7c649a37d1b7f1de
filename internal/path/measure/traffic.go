package measure

import "time"

// Kind is the kind of a connection's traffic: what it waits for.
type Kind uint8

const (
	// Short traffic has not shown yet what it is.
	Short Kind = iota
	// Messages wait for round trips: requests and their answers, or a stream that is small beside what the
	// path carries.
	Messages
	// Bulk waits for bandwidth.
	Bulk
)

func (k Kind) String() string { return [...]string{"short", "messages", "bulk"}[k] }

// Moment sums up the traffic of a connection's subflows between two samples.
type Moment struct {
	Elapsed time.Duration
	// Received and Acked are payload in bytes.
	Received, Acked uint64
	// Trip is the least round trip of its subflows without a queue.
	Trip time.Duration
	// Asked is the time since this host last sent data, and Heard the time since data last arrived.
	Asked, Heard time.Duration
	// Limited is set if the network, not the program, limited what this host sent.
	Limited bool
	// Lossy is set if packets were lost.
	Lossy bool
	// Queued is set if data arrived out of a queue.
	Queued bool
}

// Traffic finds the kind of a connection's traffic. It changes slowly.
type Traffic struct {
	// Kind is the kind found last. It may be set to what was found earlier.
	Kind    Kind
	seconds window[traffic]
	since   time.Time // when the traffic began to look like another kind; zero: it does not
}

type traffic struct {
	flowing  int // in which data moved as fast as the network let it
	trickled int // in which other data moved
	waiting  int // in which the connection waited for an answer
	lossy    int
	queued   int
	bytes    uint64
	trips    float64 // round trips' worth of time in which data moved
}

const (
	// flight is the data that a sender may send before it hears from the other side (RFC 6928). Less than that in a
	// round trip is held back by the program, not by the network, unless packets are lost. A queue, by the signs of Press,
	// shows that the network holds it back, however slow it is.
	flight      = 10 * 1400
	lossyFlight = 3 * 1400
	// The shares of recent samples, without pauses, from which traffic is bulk, and up to which it may wait for
	// answers then. Below messagesBelow it is messages.
	bulkFrom      = 0.85
	bulkWaits     = 0.08
	messagesBelow = 0.6
	// leastSamples with data are needed to tell, and manySamples where the signs differ.
	leastSamples = 8
	manySamples  = 20
	// changesAfter is the time for which another kind must have been seen before the kind changes.
	changesAfter = time.Second
)

// Take adds one sample, and returns the kind.
func (t *Traffic) Take(now time.Time, m Moment) Kind {
	t.seconds.at(now).take(m)
	looks, ok := t.looks(now)
	switch {
	case !ok || looks == t.Kind:
		t.since = time.Time{}
	case t.since.IsZero():
		t.since = now
	case now.Sub(t.since) >= changesAfter:
		t.Kind, t.since = looks, time.Time{}
	}
	return t.Kind
}

func (c *traffic) take(m Moment) {
	moved := m.Received + m.Acked
	switch {
	case m.waits():
		c.waiting++
	case moved == 0 && m.Heard > m.Trip*3/2: // idle; within a round trip the sender may wait for acknowledgements
	case m.Acked > m.Received && !m.Limited:
		c.trickled++
	default: // a receiver cannot tell what limits the sender
		c.flowing++
	}
	if m.Lossy {
		c.lossy++
	}
	if m.Queued {
		c.queued++
	}
	if moved > 0 {
		c.bytes += moved
		c.trips += m.Elapsed.Seconds() / max(m.Trip, time.Millisecond).Seconds()
	}
}

// waits reports whether the connection waits for the answer to what this host sent, for more than a part of a round
// trip, in which an answer to earlier data may be on its way. After some round trips it is a pause.
func (m Moment) waits() bool {
	return !m.Limited && m.Asked <= m.Heard && m.Asked >= max(5*time.Millisecond, m.Trip/4) && m.Asked < max(300*time.Millisecond, 3*m.Trip)
}

// looks returns the kind that the last seconds look like. ok is false if they look like none.
func (t *Traffic) looks(now time.Time) (kind Kind, ok bool) {
	var sum traffic
	for c := range t.seconds.until(now) {
		sum.flowing += c.flowing
		sum.trickled += c.trickled
		sum.waiting += c.waiting
		sum.lossy += c.lossy
		sum.queued += c.queued
		sum.bytes += c.bytes
		sum.trips += c.trips
	}
	active := sum.flowing + sum.trickled + sum.waiting // a pause tells nothing
	if active < leastSamples {
		return Short, false
	}
	fills := float64(flight)
	if 10*sum.lossy >= active {
		fills = lossyFlight
	}
	flows := float64(sum.flowing) / float64(active)
	waits := float64(sum.waiting) / float64(active)
	full := sum.trips > 0 && float64(sum.bytes)/sum.trips >= fills || float64(sum.queued) >= pressedShare*float64(active)
	switch {
	case full && flows >= bulkFrom && waits <= bulkWaits:
		return Bulk, true
	case !full || flows < messagesBelow || waits > 2*bulkWaits:
		return Messages, true
	}
	// It looks like a little of both: what it was counts, or that it is not bulk.
	return Messages, t.Kind == Short && active >= manySamples
}
