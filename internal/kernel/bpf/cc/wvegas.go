package cc

// round has the inputs and results of wVegas for one subflow at the end of a round trip (struct round of wvegas.h).
type round struct {
	window, threshold uint64 // packets; below the threshold it is in slow start
	rtt, base         uint64 // µs: mean of the round, and the least ever
	rate, others      uint64 // in equilibrium, packets in 2^32 µs: of this subflow, and the sum of the others
	alpha             uint64 // packets that should wait in queues, with waitingBits after the point
	queue             uint64 // µs: least delay in queues since they were last drained; 0: none yet
}

const (
	waitingBits      = 8
	waitingTotal     = 10 << waitingBits // total_alpha
	waitingLeast     = 2 << waitingBits  // alpha's initial value, and the least
	waitingSlowStart = 1 << waitingBits  // gamma
	windowLimit      = 1<<24 - 1
	timeLimit        = 1<<31 - 1
	rateLimit        = 1<<47 - 1
)

// wvegas implements wVegas's step at the end of a round trip (Cao, Xu, Fu 2012). It reports whether it decided about
// the window.
func wvegas(r round) (round, bool) {
	rtt := min(r.rtt, timeLimit)
	if rtt == 0 || r.base > rtt {
		return r, false
	}
	delay := rtt - r.base
	r.window = min(r.window, windowLimit)
	waiting := (r.window << waitingBits) * delay / rtt // Vegas' diff: (w/base - w/rtt) * base
	if r.window < r.threshold {
		if waiting <= waitingSlowStart {
			return r, false
		}
		r.window = min(r.window, r.window*r.base/rtt+1)
		r.threshold = r.window
		return r, true
	}
	if waiting >= r.alpha { // a subflow's share of total_alpha is its share of the rate
		r.rate = min((r.window<<32)/rtt, rateLimit)
		r.alpha = max(r.rate*waitingTotal/max(r.rate+r.others, 1), waitingLeast)
	}
	switch {
	case waiting < r.alpha:
		r.window++
	case waiting > r.alpha && r.window > 0:
		r.window--
		r.threshold = min(r.threshold, r.window) // otherwise the next ACK would undo it by slow start
	}
	if r.queue == 0 || r.queue > delay {
		r.queue = delay
	}
	if delay > 0 && delay >= 2*r.queue {
		r.window, r.queue = r.window*r.base/(2*rtt), 0
	}
	r.window = max(r.window, 2)
	return r, true
}
