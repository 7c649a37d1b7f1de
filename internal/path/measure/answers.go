package measure

import (
	"slices"
	"time"
)

const (
	// answersKept is the number of exchanges that Answers keeps.
	answersKept = 8
	// answersLeast is the number of exchanges that an estimate needs.
	answersLeast = 4
)

// Answers holds the times from a request of this host to the first data of the answer. They include the server's time
// to think, and the extra time that a path takes for large packets.
type Answers struct {
	last [answersKept]time.Duration
	n    int
	at   time.Time // of the last exchange
}

// Take adds the time of one exchange.
func (a *Answers) Take(now time.Time, took time.Duration) {
	a.last[a.n%answersKept] = took
	a.n++
	a.at = now
}

// At returns the time of the last exchange.
func (a *Answers) At() time.Time { return a.at }

// Least returns the shortest time of the last exchanges. A server's time to think varies, but a path's delay is
// always there.
func (a *Answers) Least() (least time.Duration, known bool) {
	if a.n < answersLeast {
		return 0, false
	}
	return slices.Min(a.last[:min(a.n, answersKept)]), true
}
