package measure

import "time"

// Kind is the kind of a connection's traffic. It tells what the connection waits for.
type Kind uint8

const (
	// Short traffic has not shown its kind yet.
	Short Kind = iota
	// Messages wait for round trips. They are requests with answers, or a stream that is small beside what the path
	// carries.
	Messages
	// Bulk waits for bandwidth.
	Bulk
)

func (k Kind) String() string { return [...]string{"short", "messages", "bulk"}[k] }

// Moment sums up what happened on a connection's subflows between two samples.
type Moment struct {
	Elapsed time.Duration
	// Received and Acked are payload in bytes.
	Received, Acked uint64
	// Flight is the most that a subflow moved in one of its round trips, in bytes.
	Flight float64
	// Trip is the shortest round trip of the subflows, without a queue.
	Trip time.Duration
	// Asked is the time since this host last sent data, and Heard the time since data last arrived.
	Asked, Heard time.Duration
	// Limited is set if the network, not the program, limited what this host sent.
	Limited bool
	// Backlogged is set if the program has filled the send buffer, and not because the peer's program is slow or the buffer is
	// small: a subflow is Limited, or what was sent waits at the peer for missing data.
	Backlogged bool
	// Lossy is set if packets were lost.
	Lossy bool
	// Queued is set if data arrived that had waited in a queue, and SurelyQueued if the pauses between packets are too short
	// to explain it.
	Queued, SurelyQueued bool
}

// Traffic finds the kind of a connection's traffic. The kind changes slowly.
type Traffic struct {
	// Kind is the kind found last. The caller may set it to a kind found earlier.
	Kind    Kind
	seconds window[traffic]
	since   time.Time // when the traffic began to look like another kind; zero: it does not
	begins  beginning
}

// beginning sums up the samples until the kind is known.
type beginning struct {
	sent, received int  // samples in which little moved, mostly in this direction
	held           int  // those of them with signs that the network held it back
	much           bool // much moved, or the network surely limited what moved
}

type traffic struct {
	flowing  int // samples in which data moved as fast as the network let it
	trickled int // samples in which other data moved
	waiting  int // samples in which the connection waited for an answer
	lossy    int
	held     int // samples with a queue or a backlog
	bytes    uint64
	trips    float64 // round trips in the time of samples in which data moved
}

const (
	// flight is the data that a sender may send before it hears from the other side (RFC 6928). If less moves in a
	// round trip, the program holds it back, not the network. Exceptions are lost packets, a queue by the signs of Press,
	// and a backlog: they show that the network holds it back, however slow it is.
	flight = 10 * 1400
	// lossyFlight takes the place of flight while packets are lost.
	lossyFlight = 3 * 1400
	// bulkFrom is the share of recent samples, without pauses, that must be flowing for bulk traffic.
	bulkFrom = 0.85
	// bulkWaits is the share of them that may wait for answers in bulk traffic.
	bulkWaits = 0.08
	// messagesBelow is the share of flowing samples below which traffic is messages.
	messagesBelow = 0.6
	// leastSamples is the number of samples with traffic that a kind needs.
	leastSamples = 8
	// manySamples is the number that it needs where the signs differ.
	manySamples = 20
	// littleSent and littleReceived are the numbers of samples in which little moves at the beginning. The second is
	// higher because a receiver learns later whether the network limits what it gets.
	littleSent     = 3
	littleReceived = 5
	// heldShare is the share of these samples with a queue or a loss from which the network holds the traffic back. A
	// stream loses packets, too.
	heldShare = 0.5
	// changesAfter is the time for which the traffic must look like another kind before the kind changes.
	changesAfter = time.Second
)

// Take adds one sample, and returns the kind.
func (t *Traffic) Take(now time.Time, m Moment) Kind {
	t.seconds.at(now).take(m)
	t.begins.take(m)
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

// BeginsAsMessages reports whether the traffic, whose kind is not known yet, has looked like messages in all samples. It
// becomes false as soon as that was wrong.
func (t *Traffic) BeginsAsMessages() bool {
	b := &t.begins
	return t.Kind == Short && !b.much && (b.sent >= littleSent || b.received >= littleReceived) && float64(b.held) < heldShare*float64(b.sent+b.received)
}

// MovedMuch reports whether much has moved at a time, or the network surely limited what moved, before the kind was known.
func (t *Traffic) MovedMuch() bool { return t.begins.much }

// IsLittle reports whether fewer bytes moved in this time than half of flight in each round trip. Then the program held them
// back, unless the network is slow. trip is the round trip without a queue.
func IsLittle(bytes uint64, over, trip time.Duration) bool {
	return float64(bytes)*trip.Seconds() < flight/2*over.Seconds()
}

func (b *beginning) take(m Moment) {
	switch {
	case m.Received+m.Acked == 0:
		return
	case m.Limited || m.Flight >= flight/2:
		b.much = true
		return
	case m.Acked > m.Received:
		b.sent++
	default:
		b.received++
	}
	if m.SurelyQueued || m.Lossy {
		b.held++
	}
}

func (c *traffic) take(m Moment) {
	moved := m.Received + m.Acked
	switch {
	case m.waits():
		c.waiting++
	case moved == 0 && m.Heard > m.Trip*3/2: // idle; within a round trip the sender may wait for acknowledgements
	case m.Acked > m.Received && !m.Limited && !m.Backlogged:
		c.trickled++
	default: // a receiver cannot tell what limits the sender
		c.flowing++
	}
	if m.Lossy {
		c.lossy++
	}
	if m.Queued || m.Backlogged && moved > 0 {
		c.held++
	}
	if moved > 0 {
		c.bytes += moved
		c.trips += m.Elapsed.Seconds() / max(m.Trip, time.Millisecond).Seconds()
	}
}

// waits reports whether the connection waits for the answer to what this host sent. In the first part of a round trip
// an answer to earlier data may be on its way. After some round trips it is a pause.
func (m Moment) waits() bool {
	return !m.Limited && !m.Backlogged && m.Asked <= m.Heard && m.Asked >= max(5*time.Millisecond, m.Trip/4) && m.Asked < max(300*time.Millisecond, 3*m.Trip)
}

// looks returns the kind that the last seconds look like. ok is false if they look like none.
func (t *Traffic) looks(now time.Time) (kind Kind, ok bool) {
	var sum traffic
	for c := range t.seconds.until(now) {
		sum.flowing += c.flowing
		sum.trickled += c.trickled
		sum.waiting += c.waiting
		sum.lossy += c.lossy
		sum.held += c.held
		sum.bytes += c.bytes
		sum.trips += c.trips
	}
	active := sum.flowing + sum.trickled + sum.waiting // pauses do not count
	if active < leastSamples {
		return Short, false
	}
	fills := float64(flight)
	if 10*sum.lossy >= active {
		fills = lossyFlight
	}
	flows := float64(sum.flowing) / float64(active)
	waits := float64(sum.waiting) / float64(active)
	full := sum.trips > 0 && float64(sum.bytes)/sum.trips >= fills || float64(sum.held) >= pressedShare*float64(active)
	switch {
	case full && flows >= bulkFrom && waits <= bulkWaits:
		return Bulk, true
	case !full || flows < messagesBelow || waits > 2*bulkWaits:
		return Messages, true
	}
	// The signs differ. The traffic keeps its kind. If it has none yet, it is not bulk.
	return Messages, t.Kind == Short && active >= manySamples
}
