package measure

import (
	"maps"
	"time"
)

// Goodput counts a subflow's payload of the last seconds.
type Goodput struct{ seconds window[goodput] }

type goodput struct {
	received, acked uint64
	time            time.Duration
}

// Take adds one sample, taken elapsed after the previous one: payload in bytes.
func (g *Goodput) Take(now time.Time, elapsed time.Duration, received, acked uint64) {
	c := g.seconds.at(now)
	c.received += received
	c.acked += acked
	c.time += elapsed
}

// Rates returns payload bits per second in each direction over the last seconds.
func (g *Goodput) Rates(now time.Time) (send, receive float64) {
	var sum goodput
	for c := range g.seconds.until(now) {
		sum.received += c.received
		sum.acked += c.acked
		sum.time += c.time
	}
	if sum.time <= 0 {
		return 0, 0
	}
	over := sum.time.Seconds()
	return 8 * float64(sum.acked) / over, 8 * float64(sum.received) / over
}

// rateOver is the least time over which Rates takes a rate.
const rateOver = 500 * time.Millisecond

// Rates remembers the last two readings of very many subflows, each named by a K. It works in the same
// memory every time.
type Rates[K comparable] struct {
	round      uint64    // counts rounds of readings
	at, before time.Time // of this round and the one before
	last       map[K]reading
}

// reading is a subflow's counters in this round and, if it was there, in the one before.
type reading struct {
	round                       uint64 // in which it was last seen
	received, acked             uint64
	twice                       bool // seen in the round before, too
	receivedBefore, ackedBefore uint64
}

// Begin starts a round, in which every subflow is taken once.
func (m *Rates[K]) Begin(now time.Time) {
	if m.last == nil {
		m.last = make(map[K]reading)
	}
	m.round++
	m.at, m.before = now, m.at
}

// Take adds one subflow's counts of payload, in bytes.
func (m *Rates[K]) Take(key K, received, acked uint64) {
	old, known := m.last[key]
	m.last[key] = reading{
		round: m.round, received: received, acked: acked,
		twice: known, receivedBefore: old.received, ackedBefore: old.acked,
	}
}

// End forgets the subflows that were not taken in this round.
func (m *Rates[K]) End() {
	maps.DeleteFunc(m.last, func(_ K, r reading) bool { return r.round != m.round })
}

// Len returns the number of subflows remembered.
func (m *Rates[K]) Len() int { return len(m.last) }

// Of returns payload bits per second up to now, when the counts are these, since the last reading that is not too
// fresh for a rate.
func (m *Rates[K]) Of(key K, received, acked uint64, now time.Time) (send, receive float64) {
	r, ok := m.last[key]
	if !ok {
		return 0, 0
	}
	at, from, ackedFrom := m.at, r.received, r.acked
	if now.Sub(at) < rateOver && r.twice {
		at, from, ackedFrom = m.before, r.receivedBefore, r.ackedBefore
	}
	over := now.Sub(at).Seconds()
	if over <= 0 {
		return 0, 0
	}
	return 8 * float64(acked-ackedFrom) / over, 8 * float64(received-from) / over
}
