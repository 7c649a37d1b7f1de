package measure

import "time"

// Agreement finds out whether packets of two paths wait in one queue, from round trips over both that were measured
// at the same time. Packets in one queue wait equally long, however the queue grows and shrinks. Two queues are
// equally long only for a while.
type Agreement struct {
	since, last time.Time
	least, most time.Duration // wait of packets in the present series of agreeing pairs
	pairs       int
}

const (
	// agreesBy is the difference up to which two waits agree. A link's jitter is not a queue.
	agreesBy = 2 * time.Millisecond
	// agreesPart is that difference as a part of the longer wait. The larger of the two differences counts.
	agreesPart = 0.01
	// agreesTimes is the number of pairs in a row that must agree.
	agreesTimes = 4
	// agreesFor is the least time that they must span.
	agreesFor = 2500 * time.Millisecond
	// movesBy is the least change of the queue meanwhile, as a multiple of the difference up to which waits agree.
	movesBy = 5
	// agreesSoon is the least time that they must span if the queue changes more.
	agreesSoon = 1000 * time.Millisecond
	// movesMuch is the least change of the queue in agreesSoon, as such a multiple.
	movesMuch = 25
	// agreesGap is the longest time between two pairs of a series.
	agreesGap = 2500 * time.Millisecond
)

// Take adds a pair: the waits of packets on either path. Two waits that are as short as jitter say nothing.
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

// Begins reports whether the latest pairs agree, have done so for no longer than most, and do not show one queue yet.
func (a *Agreement) Begins(now time.Time, most time.Duration) bool {
	return a.pairs > 0 && !a.Shows(now) && now.Sub(a.last) <= agreesGap && now.Sub(a.since) <= most
}

// Shows reports whether the pairs show that the packets wait in one queue.
func (a *Agreement) Shows(now time.Time) bool {
	if a.pairs < agreesTimes || now.Sub(a.last) > agreesGap {
		return false
	}
	moved, long := (a.most-a.least)/mayDiffer(a.most), a.last.Sub(a.since)
	return moved >= movesBy && long >= agreesFor || moved >= movesMuch && long >= agreesSoon
}
