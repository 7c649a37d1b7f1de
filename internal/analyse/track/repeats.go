package track

// repetition classifies data that is sent again, by its subflow.
type repetition uint8

const (
	retransmission repetition = iota // on its subflow
	reinjection                      // on another one
)

// Cause of a reinjection.
type Cause uint8

// Causes of reinjections, by the events on the first subflow before.
const (
	CauseHeadOfLine Cause = iota // nothing: the other subflow was quicker, or the window was full
	CauseLoss                    // selective acknowledgements or retransmissions
	CauseTimeout                 // no acknowledgement for longer than a retransmission timer runs
	CauseEnded                   // it was closed, reset, or its address removed
	causes
)

func (c Cause) String() string {
	return [...]string{"head-of-line", "loss", "timeout", "subflow-ended"}[c]
}

// maxTimes bounds the times of repetitions that a connection keeps. If there are more, it keeps every second one,
// then every fourth, and so on.
const maxTimes = 512

// repeats has the times at which data was sent again.
type repeats struct {
	times  [2][]int64
	every  [2]uint64 // one of 1 << every times is kept
	seen   [2]uint64
	causes [causes]uint64
}

func (r *repeats) add(at int64, kind repetition) {
	r.seen[kind]++
	if (r.seen[kind]-1)&(1<<r.every[kind]-1) != 0 {
		return
	}
	if len(r.times[kind]) == maxTimes {
		kept := r.times[kind][:0]
		for i := 0; i < maxTimes; i += 2 {
			kept = append(kept, r.times[kind][i])
		}
		r.times[kind] = kept
		r.every[kind]++
	}
	r.times[kind] = append(r.times[kind], at)
}

// cause returns why data that one subflow carried first came on another.
func (c *connection) cause(original span, _ *subflow, from Side, now int64) Cause {
	s := c.subflows[original.subflow]
	h := &s.half[from]
	if s.removed != 0 || s.end == reset || s.end == finished && s.endTime <= now && (s.half[Client].fin && s.half[Server].fin || s.half[from].fin) {
		return CauseEnded
	}
	unanswered := now - max(original.at, min(h.ackTime, now))
	roundTrip := int64(h.rtt.Mean())
	const shortestTimer = 200 * millisecond // of Linux: TCP_RTO_MIN
	switch {
	case unanswered >= max(shortestTimer, 2*roundTrip) && h.ackedLess():
		return CauseTimeout
	case h.lost != 0 && h.lost >= original.at:
		return CauseLoss
	}
	return CauseHeadOfLine
}

// ackedLess reports whether something of the direction has not been acknowledged.
func (h *half) ackedLess() bool { return h.ackKnown && before(h.acked, h.next) }
