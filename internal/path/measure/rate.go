package measure

import "time"

// Goodput counts a subflow's payload in the last seconds.
type Goodput struct{ seconds window[goodput] }

type goodput struct {
	received, acked uint64
	time            time.Duration
}

// Take adds one sample, taken elapsed after the previous one. received and acked are payload in bytes.
func (g *Goodput) Take(now time.Time, elapsed time.Duration, received, acked uint64) {
	c := g.seconds.at(now)
	c.received += received
	c.acked += acked
	c.time += elapsed
}

// Rates returns the payload in each direction over the last seconds, in bits a second.
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
