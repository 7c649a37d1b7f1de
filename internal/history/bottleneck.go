package history

import (
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// This file finds out whether the direct path of a transfer has a bottleneck of its own. If so, it would have carried
// the same without detours. If all paths share a bottleneck, such as the line at home, the direct path alone would have
// carried as much as all paths together.
//
// A bottleneck that is used up has a queue. The packets of all paths through it wait there for about the same time. So
// if packets of the direct path wait much longer than those of the detours, they wait at a bottleneck that no detour
// passes. If packets of the detours wait as long or longer, nothing is known: they may wait in the same queue, and in
// another one as well.

// knowledge tells how certain it is what the direct path would carry alone.
type knowledge int

const (
	unknown  knowledge = iota
	likely             // it has no queue that the detours could share
	measured           // it carried alone, or has a queue of its own
)

const (
	// The direct path has a queue of its own if its queue is at least leastQueue milliseconds long, and at least
	// ownTimes as long as those of the detours. It has no queue if that is shorter than emptyQueue.
	leastQueue = 15
	ownTimes   = 2
	emptyQueue = 5
	// Conclusions need at least leastWaits observations. A share of at least queueShare of them must agree.
	leastWaits = 3
	queueShare = 0.7
	// gapless is the longest time since the latest data, as a share of the queue, for which a receiver's measurement
	// counts. Its round trips include the sender's pauses, for example if the program sends less than the paths can
	// carry.
	gapless = 0.25
	// joinsIn is the time after a connection's start within which a subflow must join to count. The shortest round trip
	// of one that joins later may already include a queue.
	joinsIn = 2 * time.Second
)

// waits has the times for which packets waited in queues in one observation, in milliseconds.
type waits struct {
	direct  float64
	detours float64 // the longest wait on a detour
	known   [2]bool // whether the direct path's and a detour's wait are known
	unclear bool    // the wait on some subflow is not known
}

// take adds a subflow that carried data in the direction way.
func (w *waits) take(c *api.Connection, s *api.Subflow, way int) {
	trip := s.RTT
	if way == inward {
		trip = s.ReceiverRTT
	}
	queue := max(trip-s.MinRTT, 0)
	switch {
	case trip == 0 || s.MinRTT == 0 || s.Since.Sub(c.Since) > joinsIn || way == inward && queue >= leastQueue && s.Heard > gapless*queue:
		w.unclear = true
	case s.Waypoint == "":
		w.direct, w.known[0] = queue, true
	default:
		w.detours, w.known[1] = max(w.detours, queue), true
	}
}

// queues counts observations: all, those of a queue of the direct path's own, and those without a queue.
type queues struct{ all, own, empty int }

func (q *queues) add(w waits) {
	if w.unclear || !w.known[0] || !w.known[1] {
		return
	}
	q.all++
	switch {
	case w.direct >= leastQueue && w.direct >= ownTimes*w.detours:
		q.own++
	case w.direct < emptyQueue:
		q.empty++
	}
}

// knows returns how certain it is what the direct path would have carried alone in a stretch.
func (t *transfer) knows(s *stretch) knowledge {
	q := &t.queues
	most := func(n int) bool { return q.all >= leastWaits && float64(n) >= queueShare*float64(q.all) }
	switch {
	case max(s.even, s.direct) > (1+spread)*min(s.even, s.direct):
		// The direct paths to several servers carried unequal shares. If they share a bottleneck, they would divide it anew
		// without detours.
		return unknown
	case t.aloneIn(s) > 0 || most(q.own):
		return measured
	case most(q.own + q.empty):
		return likely
	}
	return unknown
}
