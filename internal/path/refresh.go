package path

import "time"

// This file replaces subflows for rules that want that (subflow refreshing, Tran 2019, 7.2). It replaces a subflow
// over which nothing gets through, for example because a NAT has forgotten it. It also replaces one that has become
// much slower, for example because a network throttles long transfers. The new subflow starts from another port. The
// old one ends when the new one works.
//
// If only the server will send next, this host would not learn that a NAT has forgotten the subflow. So a silent
// subflow is probed, which also refreshes the NAT's entry. If the entry is gone, nothing answers or the server resets
// the subflow. Then a new subflow is there before the server sends, or soon after.

const (
	// throttledShare is the share of its best rate below which a subflow counts as throttled.
	throttledShare = 0.25
	// throttledFor is the time for which it must be that slow.
	throttledFor = 5 * time.Second
	// refreshEvery is the least age of a subflow that is replaced because it is throttled.
	refreshEvery = 30 * time.Second
	// probeSilent is the silence after which a subflow is probed. NATs forget connections after 30 s and more.
	probeSilent = 20 * time.Second
	// paceWeight is the weight of the latest sample, about a second long, in a subflow's rate.
	paceWeight = 0.3
)

// keepPace records how fast a subflow moves data, if its rule wants refreshing.
func (t turn) keepPace(s *subflow) {
	if !t.rule.Refresh {
		s.pace = nil
		return
	}
	if s.pace == nil {
		s.pace = &pace{}
	}
	s.pace.take(s.received+s.acked, t.now)
}

// pace holds the rate at which a subflow moves data, and when it was last probed.
type pace struct {
	at         time.Time
	bytes      uint64
	rate, best float64   // bytes per second
	slow       time.Time // when it became throttled; zero: it is not
	probed     time.Time // when it was last probed because it was silent; zero: it has been heard since
}

// take adds a sample. bytes is what the subflow has moved until now.
func (p *pace) take(bytes uint64, now time.Time) {
	if elapsed := now.Sub(p.at); !p.at.IsZero() && elapsed > 0 {
		p.rate += paceWeight * (float64(bytes-p.bytes)/elapsed.Seconds() - p.rate)
	}
	idle := bytes == p.bytes
	p.at, p.bytes, p.best = now, bytes, max(p.best, p.rate)
	switch {
	case idle || p.rate >= throttledShare*p.best:
		p.slow = time.Time{}
	case p.slow.IsZero():
		p.slow = now
	}
}

// throttled reports whether data moves, and has moved much more slowly than before for throttledFor.
func (p *pace) throttled(now time.Time) bool {
	return p != nil && !p.slow.IsZero() && now.Sub(p.slow) >= throttledFor
}

// keepKnown probes a silent subflow until it is heard, if its rule wants refreshing.
func (t turn) keepKnown(s *subflow) {
	p := s.pace
	if p == nil || t.adopted || !t.isLive(s) {
		return
	}
	switch {
	case !p.probed.IsZero() && s.lastAnswer().After(p.probed):
		p.probed = time.Time{}
		t.out.do(Probe{t.token, s.local, s.remote, false, s.backup})
	case s.silent() >= probeSilent && t.now.Sub(p.probed) >= probeSilent:
		p.probed = t.now
		t.out.do(Probe{t.token, s.local, s.remote, true, s.backup})
	}
}

// refresh marks the subflows that are to be replaced as leaving.
func (t turn) refresh() {
	for _, s := range t.subflows {
		if t.toRefresh(s) {
			t.leaveFor(s, t.refreshReason(s))
		}
	}
}

// refreshReason returns why a subflow is replaced.
func (t turn) refreshReason(s *subflow) SubflowReason {
	why := SubflowReason{Cause: CauseRefreshed}
	if s.pace.throttled(t.now) {
		why.Numbers = &Numbers{Goodput: 8 * s.pace.rate, Before: 8 * s.pace.best}
	}
	return why
}

// toRefresh reports whether a subflow is to be replaced.
func (t turn) toRefresh(s *subflow) bool {
	if !t.rule.Refresh || t.adopted || !t.isLive(s) {
		return false
	}
	return s.backoff >= stuckBackoff || s.waitsTooLong() || s.unansweredFor(closeUnanswered) || s.pace.throttled(t.now) && t.now.Sub(s.since) >= refreshEvery
}
