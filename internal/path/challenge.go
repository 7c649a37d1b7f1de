package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file lets a bulk connection that has screened (tryout.go) challenge its poorest detour from time to time:
// another waypoint takes its place for a moment.

const (
	// sumBefore is the time over which the sum before a challenge is measured.
	sumBefore = 3 * time.Second
	// sumDuring is the time over which the sum during it is measured.
	sumDuring = 2 * time.Second
	// sumEarly is the time after which a challenge ends early if the waypoint is far from what it must give.
	sumEarly = time.Second
	// challengeMost is the time after which a challenge ends without a result.
	challengeMost = 12 * time.Second
	// challengeGap is the time between two challenges. It doubles while challenges are lost, up to challengeGapMost.
	challengeGap     = 15 * time.Second
	challengeGapMost = 30 * time.Minute
	// unscreenedGap takes the place of challengeGap if the connection did not screen because the direct path carries most.
	unscreenedGap = 5 * time.Second
	// retryGap is the time after which a waypoint whose record was lowered may be tried again. It doubles each time,
	// up to trustsFor.
	retryGap = 2 * time.Minute
	// provenFor is the time after a retry for which a waypoint must stay good to count as never lowered.
	provenFor = 10 * time.Minute
	// loweredTo is the share of its peak below which the goodput of a record counts as lowered.
	loweredTo = 0.7
)

// challenge is a trial of one waypoint in the place of another.
type challenge struct {
	waypoint, instead string
	// before is the sum before it began, in bits a second.
	before  float64
	began   time.Time
	flows   int  // number of bulk connections to the network of servers
	idle    bool // the other waypoint's detour stood by, because it added nothing
	invited bool // the waypoint invited the connection (invite.go)
	carried bool // the waypoint's detour has carried
	// from has the bytes of the connections when the waypoint's detour began to carry.
	from reading
	// early has the bytes of the connections from the end of its slow start on, at most sumEarly ago.
	early reading
}

// summed measures the sum: the rate of all of this host's bulk connections to a network of servers. It starts again
// when the subflows of the connection that carry change.
type summed struct {
	of        []*subflow // subflows that carry
	flows     int        // number of connections
	from, mid reading    // the sum is measured since from, at most twice sumBefore ago; mid is the next from
}

// take adds one sample. total is the number of bytes that the connections carried.
func (x *summed) take(of []*subflow, steady bool, total uint64, flows int, now time.Time) {
	is := reading{now, total}
	switch {
	case !steady || !slices.Equal(of, x.of) || flows != x.flows || total < x.mid.bytes:
		*x = summed{of: append(x.of[:0], of...), flows: flows}
		if steady {
			x.from, x.mid = is, is
		}
	case x.from.at.IsZero():
		x.from, x.mid = is, is
	case now.Sub(x.mid.at) >= sumBefore:
		x.from, x.mid = x.mid, is
	}
}

// rate returns the sum in bits a second, and the time over which it was measured.
func (x *summed) rate(total uint64, now time.Time) (rate float64, over time.Duration) {
	if x.from.at.IsZero() {
		return 0, 0
	}
	return x.from.rate(total, now)
}

// begin begins a challenge if there is a reason for one. It reports whether it did.
func (t trying) begin(total uint64) bool {
	tr := t.tryouts
	sum, over := tr.sum.rate(total, t.now)
	ready := append(t.idle(), t.ready()...)
	if over < sumBefore || len(ready) == 0 || t.busy() || t.exchangedLately() || t.fledLately() {
		return false
	}
	who, instead := "", readySubflow{}
	invited := false
	if t.detours.exploration.may(t.now) {
		who, instead = t.inviting(ready, sum)
		if invited = who != ""; !invited {
			who, instead = t.challenger(ready, sum)
		}
	}
	switch {
	case who == "":
		tr.due = t.now.Add(challengeGap)
		return false
	case invited && !t.accepts(who):
		tr.due = t.now.Add(drawsEvery)
		return false
	case !t.detours.holds(t.turn):
		return false
	case !invited:
		t.detours.history.retries(who, t.server, t.now)
	}
	_, flows := t.conns.carriedTo(t.server)
	tr.challenge = &challenge{waypoint: who, instead: instead.detour.Waypoint, before: sum, began: t.now, flows: flows, idle: instead.addsNothing(), invited: invited}
	t.yield(instead.subflow, policy.Comparison{Waypoint: who, Goodput: instead.rate}, nil)
	return true
}

// challenger returns a waypoint to try, and the detour that gives its place. who is empty if there is no such waypoint. The
// waypoint
//
//   - was not measured,
//   - or gave more before its record was lowered,
//   - or gives more together with what other detours regain. A detour may regain its earlier rate if it shares a bottleneck
//     with the one that gives its place.
func (t trying) challenger(ready []readySubflow, sum float64) (who string, instead readySubflow) {
	ready = slices.DeleteFunc(slices.Clone(ready), func(s readySubflow) bool { return !s.addsNothing() && !t.presses(s.subflow) })
	if len(ready) == 0 {
		return "", instead
	}
	if names := t.unmeasured(); len(names) > 0 && (t.tryouts.unscreened || t.now.Sub(t.tryouts.ended) >= challengeGap) {
		return names[0], ready[0]
	}
	most := tryoutGain * sum
	for o := range t.spare() {
		r, ok := t.detours.history.of(o.Waypoint, t.server)
		if !ok || o.Kind.Own() || r.isShunned(t.now) || !within(r.goodputAt, t.now, trustsFor) {
			continue
		}
		lowered := r.goodput < loweredTo*r.peak && t.now.Sub(r.goodputAt) >= retryTime(r.retries)
		for _, s := range ready {
			gets := sum - s.rate
			switch regained := t.regained(s.subflow); {
			case lowered:
				gets += r.peak
			case t.lost(o.Waypoint):
				continue
			case s.addsNothing() && s.aside.why.isBurden(): // which does not show that another would add nothing
				gets += r.goodput
			case regained < (tryoutGain-1)*sum:
				continue
			default:
				gets += r.goodput + regained
			}
			if gets > most {
				who, instead, most = o.Waypoint, s, gets
			}
		}
	}
	return who, instead
}

// regained returns how much more the other detours would carry without one if they carried as much as they ever did.
func (t trying) regained(without *subflow) (sum float64) {
	for _, s := range t.subflows {
		if rate, known := t.steadyRate(s); known && s.detour != nil && s != without && !s.backup {
			r, _ := t.detours.history.of(s.detour.Waypoint, t.server)
			sum += max(0, r.peak-rate)
		}
	}
	return sum
}

// judgeChallenge ends a challenge when its result is known. It reports whether the earlier detour comes back.
func (t trying) judgeChallenge(total uint64) bool {
	tr := t.tryouts
	c := tr.challenge
	t.detours.holds(t.turn)
	s := t.find(func(s *subflow) bool { return s.waypoint() == c.waypoint && !s.leaving })
	carries := s != nil && s.up && !s.backup
	c.carried = c.carried || carries && s.carried()
	if carries && c.from.at.IsZero() {
		c.from = reading{t.now, total}
	}
	tooLate := t.now.Sub(c.began) >= challengeMost
	switch {
	case t.fled.After(c.began) || t.exchanged.After(c.began) || tr.sum.flows != c.flows || carries && tooLate:
		tr.endChallenge(TryoutDisturbed, 0, 0, t.now)
		return false
	case c.carried && !carries:
		tr.endChallenge(TryoutLeft, 0, 0, t.now)
		return false
	case tooLate || !c.carried && s == nil && !tr.waits(t.now) && !t.has((*subflow).yields):
		tr.endChallenge(TryoutUnreached, 0, 0, t.now)
		return false
	case !carries || t.busy():
		return false
	}
	rate, _ := t.steadyRate(s)
	sum, stops, known := t.sumWith(s, rate, total)
	if !known {
		return false
	}
	t.result(readySubflow{s, rate})
	if sum >= tryoutGain*c.before {
		tr.endChallenge(TryoutKept, sum, rate, t.now)
		t.claim(s)
		if tr.unscreened && t.directShare() < screensBelow { // the other waypoints are worth a screening now
			tr.unscreened, tr.over = false, false
		}
		return false
	}
	tr.endChallenge(TryoutLost, sum, rate, t.now)
	if c.invited {
		t.detours.disappoints(c.waypoint, t.server, t.now)
	}
	if c.idle { // then the other waypoint's detour may stand by as well
		tr.omissions.due, tr.omissions.gap, tr.omissions.carriers = t.now, omitGap, t.carriers()
		return false
	}
	if t.carriesWithout(s) {
		t.yield(s, policy.Comparison{Waypoint: c.instead, Goodput: rate}, &Numbers{With: sum, Without: c.before})
		if stops {
			t.free(s)
		}
	}
	return true
}

// sumWith returns what the connections get with the waypoint's detour, in bits a second, whose own rate is given. known is false
// until enough is measured. stops is set if it is known early because the other subflows wait for the detour.
func (t trying) sumWith(s *subflow, rate float64, total uint64) (sum float64, stops, known bool) {
	c := t.tryouts.challenge
	if sum, _ = c.from.rate(max(total, c.from.bytes), t.now); t.stopsOthers(s) && sum < tryoutGain*c.before {
		return sum, true, true
	}
	sum, over := t.tryouts.sum.rate(total, t.now)
	if over >= sumDuring {
		return sum, false, true
	}
	sum, known = c.isFar(reading{t.now, total}, rate)
	return sum, false, known
}

// stopsOthers reports whether the other subflows wait so long for the waypoint's detour that it cannot be worth it.
func (t trying) stopsOthers(s *subflow) bool {
	return s.measuredAt(t.now) && t.now.Sub(s.habits.burden.since) >= sumEarly && s.habits.burden.missedMuch(t.now)
}

// isFar reports whether the waypoint is so far from what it must give that twice its rate would not be enough, and the sum
// with it in bits a second. rate is the rate of its detour after its slow start, or 0.
func (c *challenge) isFar(is reading, rate float64) (sum float64, far bool) {
	if rate == 0 || c.early.at.IsZero() || is.bytes < c.early.bytes {
		c.early = is
		return 0, false
	}
	sum, over := c.early.rate(is.bytes, is.at)
	if over < sumEarly {
		return 0, false
	}
	c.early = is
	return sum, sum+rate < tryoutGain*c.before
}

// endChallenge ends the challenge under way and records its result.
func (tr *tryouts) endChallenge(v TryoutVerdict, sum, goodput float64, now time.Time) {
	c := tr.challenge
	tr.add(Tryout{Waypoint: c.waypoint, At: now, Goodput: goodput, Instead: c.instead, Sum: sum, Before: c.before, Verdict: v})
	tr.challenge = nil
	tr.gap = min(2*tr.gap, challengeGapMost)
	if v == TryoutKept || tr.unscreened && len(tr.results) < screensMost {
		tr.gap = tr.leastGap()
	}
	tr.due = now.Add(tr.gap)
}

// leastGap returns the time between two challenges while they are won, and while a connection tries waypoints that it did not
// screen.
func (tr *tryouts) leastGap() time.Duration {
	if tr.unscreened {
		return unscreenedGap
	}
	return challengeGap
}

// lost reports whether a recent tryout showed that the connection gets no more through a waypoint.
func (w weighing) lost(waypoint string) bool {
	if w.tryouts == nil {
		return false
	}
	return slices.ContainsFunc(w.tryouts.results, func(r Tryout) bool {
		return (r.Verdict == TryoutLost && r.Waypoint == waypoint || r.Verdict == TryoutKept && r.Instead == waypoint) && within(r.At, w.now, exchangeTrusts)
	})
}

// retryTime returns the time after which a waypoint may be tried again that was tried again this many times.
func retryTime(times int) time.Duration { return doubled(retryGap, times, trustsFor) }

// retries records that a waypoint is tried again.
func (h history) retries(waypoint string, server netip.AddrPort, now time.Time) {
	key := trailOf(waypoint, server)
	r, known := h[key]
	if !known {
		if len(h) >= mostTrails {
			h.dropOldest()
		}
		r.at = now
	}
	r.retries, r.retried = r.retries+1, now
	h[key] = r
}

// untried takes back that a waypoint was tried, because the server had no place for its subflow.
func (h history) untried(waypoint string, server netip.AddrPort) {
	key := trailOf(waypoint, server)
	if r, known := h[key]; known && r.retries > 0 {
		r.retries--
		r.retried = time.Time{}
		h[key] = r
	}
}
