package history

import (
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// This file finds out whether the direct path of a transfer has a bottleneck of its own. Only then would it alone have carried no
// more than it carried beside the detours. Where all paths share their bottleneck, such as the line at home, it would have carried as
// much as all of them.
//
// A bottleneck that is used up has a queue, in which the packets of all paths that pass it wait for about the same time. So packets of
// the direct path that wait for much longer than those of the detours wait at a bottleneck that no detour passes. If packets of the
// detours wait for as long or longer, nothing is known: they may wait in the same queue, and in another besides.

// knowledge is how certain the rate is that the direct path would carry alone.
type knowledge int

const (
	unknown  knowledge = iota
	likely             // it has no queue that it could share
	measured           // it carried alone, or has a queue of its own
)

const (
	// A queue of its own is at least leastQueue milliseconds long, and at least ownTimes as long as those of the detours. No queue is
	// shorter than emptyQueue.
	leastQueue = 15
	ownTimes   = 2
	emptyQueue = 5
	// There must be at least leastWaits observations, and queueShare of them must show the same.
	leastWaits = 3
	queueShare = 0.7
	// gapless is the share of a queue that the time since the latest data may have: what a receiver measures includes the sender's
	// pauses, as when its program sends less than the paths carry.
	gapless = 0.25
	// joinsIn is the time after a connection's beginning in which a detour must join: later, the shortest round trip that it shows may
	// include a queue.
	joinsIn = 2 * time.Second
)

// waits has how long packets waited in queues, in milliseconds, in one observation.
type waits struct {
	direct  float64
	detours float64 // the longest of the detours that carried
	known   [2]bool // of the direct path, of a detour
	unclear bool    // it is not known of all that carried
}

// take adds a subflow that carried in a direction.
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

// queues counts observations of how long packets waited.
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

// knows returns how it is known what the direct path carries alone.
func (t *transfer) knows() knowledge {
	q := &t.queues
	most := func(n int) bool { return q.all >= leastWaits && float64(n) >= queueShare*float64(q.all) }
	switch {
	case t.alone > 0 || most(q.own):
		return measured
	case most(q.own + q.empty):
		return likely
	}
	return unknown
}
