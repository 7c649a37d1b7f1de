package measure

import "time"

// Agreement finds out whether packets of two paths wait in one queue, from round trips over both that were measured at the same
// time. Packets in one queue wait equally long, however long it grows and shrinks. Two queues are equally long only for a while.
type Agreement struct {
	since, last time.Time
	least, most time.Duration // wait of packets in this series of agreeing pairs
	pairs       int
}

const (
	// Waits that differ by at most agreesBy, or by this part of the longer one, agree. A link's jitter is not a queue.
	agreesBy   = 2 * time.Millisecond
	agreesPart = 0.01
	// So many pairs must agree in a row, for so long, while the queue changes by movesBy times what may differ; or for a shorter
	// time, while it changes by more.
	agreesTimes = 4
	agreesFor   = 2500 * time.Millisecond
	movesBy     = 5
	agreesSoon  = 1000 * time.Millisecond
	movesMuch   = 25
	// Pairs that are further apart in time are no series.
	agreesGap = 2500 * time.Millisecond
)

// Take adds a pair: how long packets waited on either path. Two waits that are too short to be told from jitter say nothing.
func (a *Agreement) Take(now time.Time, x, y time.Duration) {
	least, most := min(x, y), max(x, y)
	switch {
	case most-least > mayDiffer(most):
		*a = Agreement{}
		return
	case least < movesBy*agreesBy:
		return
	case a.pairs == 0 || now.Before(a.last) || now.Sub(a.last) > agreesGap:
		*a = Agreement{since: now, least: least, most: most}
	}
	a.last, a.least, a.most = now, min(a.least, least), max(a.most, most)
	a.pairs++
}

func mayDiffer(wait time.Duration) time.Duration {
	return max(agreesBy, time.Duration(agreesPart*float64(wait)))
}

// Begins reports whether the latest pairs agree, for at most so long, and do not show one queue yet.
func (a *Agreement) Begins(now time.Time, most time.Duration) bool {
	return a.pairs > 0 && !a.Shows(now) && now.Sub(a.last) <= agreesGap && now.Sub(a.since) <= most
}

// Shows reports whether the pairs show one queue.
func (a *Agreement) Shows(now time.Time) bool {
	if a.pairs < agreesTimes || now.Sub(a.last) > agreesGap {
		return false
	}
	moved, long := (a.most-a.least)/mayDiffer(a.most), a.last.Sub(a.since)
	return moved >= movesBy && long >= agreesFor || moved >= movesMuch && long >= agreesSoon
}
