package measure

import (
	"slices"
	"time"
)

// answersKept is the number of exchanges of which Answers knows, and answersLeast the least from which it tells.
const (
	answersKept  = 8
	answersLeast = 4
)

// Answers has the times from a request of this host to the first of its answer that a sample shows. They include what a
// server takes to think, and what a path takes for large packets beyond the round trip of small ones.
type Answers struct {
	last [answersKept]time.Duration
	n    int
}

// Take adds one exchange.
func (a *Answers) Take(took time.Duration) {
	a.last[a.n%answersKept] = took
	a.n++
}

// Least returns the least time of the last exchanges: servers think for different times, paths differ always.
func (a *Answers) Least() (least time.Duration, known bool) {
	if a.n < answersLeast {
		return 0, false
	}
	return slices.Min(a.last[:min(a.n, answersKept)]), true
}
