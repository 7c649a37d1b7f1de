package path

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file sets a detour aside at once that holds up its connection for more than it is worth. The receiver puts the
// connection's data in order. So what other subflows bring waits for what is late or lost on the detour, and they pause
// as soon as the window or the sender's buffer is full. Both are small in the first seconds. A detour is a burden if:
//
//   - The others missed more in their pauses than the detour carried. For a young detour, what it will have carried soon
//     counts, because the losses at the end of its slow start come only once.
//   - Or much more data waits for it, on average, than it has carried lately. Without it, more would have arrived in order.
//
// Omissions find out more exactly what a detour adds (omit.go), but only when all rates have been steady for seconds. A
// burden stands by for a while that grows each time, or until the connection has less without it than it alone had (wake.go).
// Then it carries again, and an omission may decide.

const (
	// burdenOver is the time over which what the others miss and what the detour carries are added up.
	burdenOver = 5 * time.Second
	// burdenYoung is the age up to which a detour counts as young.
	burdenYoung = 4 * time.Second
	// burdenLeast is the number of bytes that the others may miss, or that may wait, by chance.
	burdenLeast = 24 << 10
	// heldOver is the time over which the data that waits is averaged.
	heldOver = time.Second
	// heldMuch is the multiple of what a detour has carried lately that may wait for it. A detour whose packets are a long
	// time under way is soon worth the wait.
	heldMuch = 1.5
	// heldAfter is the time for which a detour must have carried to be judged by that, and heldTrips the number of its round
	// trips. In its slow start, a long detour carries little of what it will carry, but all data waits for it.
	heldAfter = time.Second
	heldTrips = 12
	// resendsFor is the time within which what a detour had not delivered arrives on other paths.
	resendsFor = 4 * time.Second
	// keptLeast is the number of bytes that the peer must keep to show that data is missing.
	keptLeast = 8 << 10
	// keptOver is the time after which data that was sent twice is forgotten.
	keptOver = 3 * time.Second
	// burdenKeeps is the share of the highest rate with a burden that shows that it adds nothing.
	burdenKeeps = 0.9
	// burdenStands is the time for which a burden stands by first.
	burdenStands = 10 * time.Second
)

// burden holds the costs and the use of a subflow in the last seconds. Its amounts are in bytes.
type burden struct {
	since    time.Time // when the subflow began to carry
	missed   float64   // what the others could have carried while they waited for it
	held     float64   // what the others had brought and that waited for it, on average
	carried  float64   // what it carried
	furthest uint64    // the furthest position in the connection's data that it has brought
	// awaited is the subflow that this one waited for at the last sample, or nil.
	awaited *subflow
}

// isHeavy reports whether the connection is better off without the detour, whose shortest round trip is given.
func (b *burden) isHeavy(trip time.Duration, now time.Time) bool {
	return b.missedMuch(now) || b.holdsMuch(trip, now)
}

// missedMuch reports whether the others missed more than the detour carried, or would have carried at the same rate when it
// is no longer young.
func (b *burden) missedMuch(now time.Time) bool {
	// filled returns the share of its final value that a sum over burdenOver has at an age, at a steady rate.
	filled := func(age time.Duration) float64 { return 1 - math.Exp(-age.Seconds()/burdenOver.Seconds()) }
	soon := max(1, filled(burdenYoung)/filled(now.Sub(b.since)))
	return b.missed > burdenLeast+soon*b.carried
}

// holdsMuch reports whether much more waits for the detour than it carried.
func (b *burden) holdsMuch(trip time.Duration, now time.Time) bool {
	return now.Sub(b.since) >= min(max(heldAfter, heldTrips*trip), burdenYoung) && b.held > burdenLeast+heldMuch*b.carried
}

// charge adds up what the subflows carried since the last sample, what they missed, and what waited for them.
func (w weighing) charge(moment measure.Moment) {
	w.attention.peak.Take(moment.Elapsed, moment.Received+moment.Acked)
	carrying := w.where(func(s *subflow) bool { return !s.backup && s.measuredAt(w.now) })
	var leader *subflow
	for _, s := range carrying {
		b, step := &s.habits.burden, &s.habits.step
		if b.since.IsZero() {
			b.since = w.now.Add(-step.elapsed)
		}
		keeps := max(0, 1-step.elapsed.Seconds()/burdenOver.Seconds())
		b.missed *= keeps
		b.carried = b.carried*keeps + float64(step.received+step.acked)
		b.furthest = max(b.furthest, s.dataEnd)
		if leader == nil || b.furthest > leader.habits.burden.furthest {
			leader = s
		}
	}
	for _, s := range carrying {
		b := &s.habits.burden
		before := b.awaited
		b.awaited = w.awaited(carrying, s)
		if x := cmp.Or(b.awaited, before); x != nil && slices.Contains(carrying, x) {
			x.habits.burden.missed += s.habits.step.missed
		}
	}
	// Otherwise its own data is missing, or that of a detour that the connection has just left.
	if leader != nil && !leader.habits.step.gap && !w.resends() {
		w.hold(carrying, leader)
	}
}

// resends reports whether data may be missing that a collapsed detour had not delivered when the connection left it. The server
// sends it again on the other paths.
func (w weighing) resends() bool { return w.flights > 0 && w.now.Sub(w.fled) < resendsFor }

// hold averages what waits for each subflow: all that the leader, the subflow that is furthest, brought ahead of it.
func (w weighing) hold(carrying []*subflow, leader *subflow) {
	first := firstOf(carrying, leader)
	for _, s := range carrying {
		held := 0.0
		if ahead := leader.habits.burden.furthest; s == first && ahead > w.data.upTo {
			held = float64(ahead - w.data.upTo)
		}
		b := &s.habits.burden
		b.held += min(1, s.habits.step.elapsed.Seconds()/heldOver.Seconds()) * (held - b.held)
	}
}

// awaited returns the subflow that s waits for, because data that it brought waits for data of the other. It returns nil
// if there is none.
func (w weighing) awaited(carrying []*subflow, s *subflow) (longest *subflow) {
	if s.habits.burden.furthest > w.data.upTo {
		return firstOf(carrying, s)
	}
	if !w.attention.kept.isMuch() || !s.waiting.IsZero() {
		return nil
	}
	for _, x := range carrying {
		if !x.waiting.IsZero() && (longest == nil || x.waiting.Before(longest.waiting)) {
			longest = x
		}
	}
	return longest
}

// kept estimates the bytes that the peer keeps because data before them is missing: the subflows' bytes that it has
// acknowledged, less those of the connection. Data that was sent on two subflows counts twice, but not for long.
type kept struct {
	acked uint64 // of the connection; 0: unknown
	bytes float64
}

// isMuch reports whether the peer keeps so much that data must be missing.
func (k *kept) isMuch() bool { return k.bytes >= keptLeast }

// inOrder returns the payload for which the peer has just acknowledged that nothing before it on its subflow is missing.
func (w weighing) inOrder() (sum uint64) {
	for _, s := range w.subflows {
		if s.measuredAt(w.now) {
			sum += s.habits.step.inOrder
		}
	}
	return sum
}

func (k *kept) take(elapsed time.Duration, inOrder, acked uint64) {
	if k.acked > 0 && acked >= k.acked {
		k.bytes *= max(0, 1-elapsed.Seconds()/keptOver.Seconds())
		k.bytes = max(0, k.bytes+float64(inOrder)-float64(acked-k.acked))
	}
	k.acked = acked
}

// firstOf returns the subflow whose data is most likely missing before that of s: of the others, the one whose latest
// data is the earliest in the stream. If the latest data of all is later than that of s, it is one of the detours, because
// the direct path alone would miss nothing. It returns nil if there is none.
func firstOf(list []*subflow, s *subflow) (first *subflow) {
	for _, x := range list {
		end := x.habits.burden.furthest
		if x != s && (end < s.habits.burden.furthest || x.detour != nil) && (first == nil || end < first.habits.burden.furthest) {
			first = x
		}
	}
	return first
}

// putBurdenAside makes a detour stand by because of what it costs the others.
//
// If the others pause, the detour ends, and another subflow over it joins to stand by. The server then sends all that is
// not acknowledged again on the other paths, which have room for it. Otherwise that would cost more than to wait until
// the detour has delivered what it has queued.
func (w weighing) putBurdenAside(s *subflow) {
	b := s.habits.burden
	ends := b.missedMuch(w.now)
	why := Verdict{Carried: uint64(b.carried), With: w.attention.peak.Rate()}
	if ends {
		why.Missed = uint64(b.missed)
	} else {
		why.Held = uint64(b.held)
	}
	until := w.detours.history.addedNothing(s.waypoint(), w.server, why, burdenStands, w.now)
	s.habits.burden = burden{}
	if rate, known := w.steadyRate(s); known && w.tryouts != nil && !w.tryouts.over {
		w.result(readySubflow{s, rate})
	}
	w.putAside(s, w.idleCause(), why)
	s.aside.until = until
	if ends {
		w.leaveFor(s, s.aside.reason())
	} else {
		w.departsAside(s)
	}
	if tr := w.tryouts; tr != nil {
		total, _ := w.conns.carriedTo(w.server)
		o := &tr.omissions
		o.carriers, o.sum, o.second = w.carriers(), summed{}, reading{w.now, total}
		o.got, o.guessed = 0, true // it shows only when the direct path has recovered
	}
}

// setBurdensAside makes detours stand by that hold up the others for longer than they are worth. It reports whether
// there were any.
func (w weighing) setBurdensAside(moment measure.Moment) (found bool) {
	if _, ok := w.rule.Policy.(policy.Detours); !ok || w.kind == measure.Messages {
		return false
	}
	w.charge(moment)
	if tr := w.tryouts; tr != nil && (tr.challenge != nil || tr.omissions.trials()) {
		return false // which compares what the connections get with and without the detour
	}
	for _, s := range w.subflows {
		if s.backup || !s.measuredAt(w.now) || !s.habits.burden.isHeavy(s.minRTT, w.now) || !w.exchangeable(s) || !w.carriesWithout(s) || w.anotherCollapses(s) {
			continue
		}
		w.putBurdenAside(s)
		found = true
	}
	return found
}

// anotherCollapses reports whether another subflow gets much less than usual and has a longer queue. Then the connection waits for its
// data rather than for that of s. A subflow that pauses because of s has no queue.
func (w weighing) anotherCollapses(s *subflow) bool {
	return w.has(func(x *subflow) bool {
		return x != s && !x.backup && x.measuredAt(w.now) && x.isFalling() && x.queue() > s.queue()
	})
}

// staysBurden reports whether a burden goes on standing by when its time is over, because the connection has had as much
// without it as ever with it. What a detour that came later brings does not show that.
func (w weighing) staysBurden(s *subflow) bool {
	why := s.aside.why
	later := w.has(func(x *subflow) bool { return x.detour != nil && !x.backup && x.since.After(s.aside.since) })
	if without := w.goodput(); why.isBurden() && !later && without >= burdenKeeps*why.With {
		s.aside.why = Verdict{With: why.With, Without: without}
		s.aside.until = w.detours.history.addedNothing(s.waypoint(), w.server, s.aside.why, standsFor, w.now)
		return true
	}
	return false
}
