package path

import (
	"cmp"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file lets a bulk connection omit detours that add nothing. Where all paths share a bottleneck, such as the
// line at home, a detour with a long queue only makes the others wait, because the receiver puts the data in order.
// To omit a detour is to make it a backup for a moment and to compare the sum: the rate of all of this host's bulk
// connections to that network of servers. If the sum stays, the detour stands by from then on. If it falls, the
// detour carries again at once.
//
//   - Only a detour that is likely to make the others wait is omitted. It has a much longer queue than the others, loses
//     packets, or is so slow that the others pause while it carries one burst.
//   - The cost is bounded. A detour is omitted only if what it carries in omitCosts is a small share of what the
//     connection has carried. So detours that carry little are omitted first, and one that carries much never is. The
//     bound does not apply if the others miss about as much in their pauses as the detour carries.
//   - Detours that stand by carry again when they are needed, or for another comparison (wake.go).
//
// If sessions show that this host's line is the bottleneck (line.go), all detours are omitted together. Only the
// intervals between such omissions bound their cost.
//
// A challenge may give the place of a detour that stands by to another waypoint (challenge.go).

const (
	// omitBefore is the least time over which the sum before an omission is measured.
	omitBefore = 2 * time.Second
	// omitDuring is the time over which the sum during it is measured.
	omitDuring = 2 * time.Second
	// omitKeeps is the share of the sum that must stay for a detour to add nothing. Samples come a few milliseconds
	// late in 2 s, so a larger share would be noise. With a smaller one, detours would stand by that add something.
	omitKeeps = 0.99
	// lineBefore takes the place of omitBefore if there is a sign that the line is the bottleneck.
	lineBefore = time.Second
	// lineUnsteady does the same while the rates of subflows still change.
	lineUnsteady = 2 * time.Second
	// lineKeeps takes the place of omitKeeps then.
	lineKeeps = 0.95
	// repairsDry is the time without data that is too long to be the gap between two segments.
	repairsDry = 200 * time.Millisecond
	// lineFollows is the multiple of the direct path's rate up to which a detour is omitted because of the line.
	lineFollows = 2
	// omitFailsIn is the time after which an omission fails if more than half of what the detours carried is missing.
	omitFailsIn = 800 * time.Millisecond
	// omitDrains is the time after which the comparison begins even if a detour's queue has not drained.
	omitDrains = 4 * time.Second
	// omitMost is the time after which an omission ends without a result.
	omitMost = 8 * time.Second
	// omitMay is the share of what a connection has carried, and carries in omitCredit, that its omissions may cost.
	omitMay = 0.005
	// omitCredit is the time whose traffic counts in advance. omitCreditAlone takes its place if no other waypoint could
	// take the detour's place.
	omitCredit      = 20 * time.Second
	omitCreditAlone = 30 * time.Second
	// omitCosts is the time for which an omission costs what the detour carries, if the detour adds all of that.
	omitCosts = time.Second
	// omitQueue is the queue from which a detour makes the others wait.
	omitQueue = 200 * time.Millisecond
	// omitQueues is the multiple of the other subflows' queues that it must be as well.
	omitQueues = 2
	// omitLoss is the share of lost packets from which a detour makes the others wait.
	omitLoss = 0.01
	// sendBurst is the number of bits that Linux' scheduler gives to a subflow at a time (MPTCP_SEND_BURST_SIZE).
	sendBurst = 8 * 64 << 10
	// sendTrips is the number of round trips for which Linux' send buffer holds what a subflow carries
	// (tcp_sndbuf_expand).
	sendTrips = 2
	// pausesFrom is the time without data from which the fastest subflow pauses.
	pausesFrom = 100 * time.Millisecond
	// pausesCost is the share of what a slow detour carries that the others must miss. They also miss what shorter pauses
	// cost, which are not seen.
	pausesCost = 0.5
	// pausesOver is the time over which the share of pauses is averaged.
	pausesOver = 3 * time.Second
	// omitPart is the largest part of the connection's data that an omitted detour carries.
	omitPart = 0.25
	// omitGap is the time to the next omission after one that failed. It doubles each time, up to challengeGapMost.
	omitGap = 5 * time.Second
	// standsFor is the time after which a detour that stands by carries again for another comparison. It doubles
	// likewise, over all connections to a network of servers (addednothing.go).
	standsFor = time.Minute
)

// omissions is the state of a connection that omits detours.
type omissions struct {
	sum         summed
	due         time.Time
	gap, stands time.Duration
	spent       float64 // bits that omissions have cost
	missed      float64 // what the fastest subflow would carry in its pauses, in bits a second
	paused      float64 // share of pauses in the last seconds
	repaired    bool    // the direct path was repaired at the last sample
	line        lineSigns

	trial        []*subflow // detours that are omitted now
	began        time.Time
	byLine       bool    // they are omitted because of the line
	from         reading // when their queues had drained; zero: they have not yet
	before, rate float64 // the sum with them, and their part of it
	flows        int     // number of bulk connections to the network of servers

	carriers []*subflow // the subflows that carry while detours stand by
	got      float64    // the sum with these
	alone    time.Time  // until then, a detour that joins stands by as well, because the line is the bottleneck
	guessed  bool       // got is a guess: other connections got it, or data that had waited came at once
	second   reading    // bytes of the bulk connections, at most about a second ago
}

// addsNothing reports whether the subflow is omitted, or stands by because it adds nothing.
func (s *subflow) addsNothing() bool { return s.isAside(addsNothing) }

// trials reports whether detours are omitted now.
func (o *omissions) trials() bool { return len(o.trial) > 0 }

// looks reports whether omit needs the bytes that the bulk connections carried.
func (o *omissions) looks(t turn) bool {
	return o.trials() || !t.now.Before(o.due.Add(-omitBefore-closeGap)) || t.now.Sub(o.second.at) >= time.Second && t.has((*subflow).addsNothing)
}

// omit takes the next step of the omissions of a connection that has screened. It reports whether that changed
// anything.
func (t trying) omit(total uint64, flows int) (changed bool) {
	o := &t.tryouts.omissions
	carrying := t.carriers()
	repaired := (o.line.isRecent(t.now) || t.has((*subflow).addsNothing)) && t.has(t.isRepaired)
	hole := repaired || o.repaired // the first sample afterwards has what arrived meanwhile
	o.repaired = repaired
	o.pauses(t.turn, carrying)
	presses := slices.ContainsFunc(carrying, t.presses) || slices.ContainsFunc(carrying, t.pausesOthers)
	steady := !t.busy() && !hole && presses && t.areSteady(carrying)
	o.sum.take(carrying, steady, total, flows, t.now)
	if hole {
		o.begin(reading{t.now, total})
	}
	if o.trials() {
		return t.judgeOmission(carrying, total, flows)
	}
	line := o.line.last.Equal(t.now)
	if t.wakeOmitted(carrying, total, line) {
		return true
	}
	sum, over := o.sum.rate(total, t.now)
	known := over >= omitBefore
	if line && !known {
		if known = over >= lineBefore; !known {
			sum, over = o.line.rate(total, t.now)
			known = over >= lineUnsteady
		}
	}
	if t.now.Before(o.due) || !known || t.exchangedLately() || t.fledLately() || t.now.Sub(t.attention.stalls.calledUp) < calmFor ||
		slices.ContainsFunc(carrying, (*subflow).isAccused) {
		return false
	}
	var list []readySubflow
	if line {
		list = t.detoursBehindLine()
	} else if s := t.omissible(sum); s.subflow != nil {
		list = append(list, s)
	}
	if len(list) == 0 {
		o.due = t.now.Add(time.Second)
		return false
	}
	if !t.detours.holds(t.turn) {
		return false
	}
	o.trial, o.began, o.byLine, o.from, o.before, o.rate, o.flows = o.trial[:0], t.now, line, reading{}, sum, 0, flows
	for _, s := range list {
		o.trial, o.rate = append(o.trial, s.subflow), o.rate+s.rate
		t.putAside(s.subflow, addsNothing, Verdict{Line: line})
	}
	o.carriers = t.carriers()
	return true
}

// detoursBehindLine returns the detours to omit because the line is full: they carry, may give their places, and pass
// the line. A detour that carries much more than the direct path does not make it wait. Without it, the line would
// take long to fill again.
func (t trying) detoursBehindLine() (list []readySubflow) {
	direct := 0.0
	for _, s := range t.carriers() {
		if s.direct {
			rate, _ := t.steadyRate(s)
			direct += rate
		}
	}
	for _, s := range t.subflows {
		if s.detour != nil && !s.detour.Kind.Own() && !s.backup && t.exchangeable(s) && t.detours.passesLine(s.detour, t.now) {
			if rate, _ := t.steadyRate(s); rate <= lineFollows*direct {
				list = append(list, readySubflow{s, rate})
			}
		}
	}
	return list
}

func (s *subflow) isAccused() bool { return s.habits != nil && s.habits.accused() }

// omissible returns the detour to omit next. Of those that were not omitted for longest, it is the one whose data
// waits longest for what it carries. Its subflow is nil if there is none.
func (t trying) omissible(sum float64) (best readySubflow) {
	o := &t.tryouts.omissions
	own := 0.0
	for _, s := range t.carriers() {
		rate, _ := t.steadyRate(s)
		own += rate
	}
	credit, flees := omitCreditAlone, t.refuge() > 0
	if flees {
		credit = omitCredit
	}
	budget := omitMay*(8*float64(t.conn.carried)+credit.Seconds()*sum) - o.spent
	omitted := func(s readySubflow) time.Time {
		if s.aside == nil {
			return time.Time{}
		}
		return s.aside.since
	}
	// Another subflow that falls has another reason (flee.go), unless it pauses because of a slow detour.
	anotherFalls := func(detour readySubflow) bool {
		return slices.ContainsFunc(t.carriers(), func(s *subflow) bool { return s != detour.subflow && s.isFalling() })
	}
	waitsFor := func(s readySubflow) float64 {
		loss, _ := s.loses(t.now)
		return waits(s.habits.step.trip, loss).Seconds() / max(s.rate, 1)
	}
	for _, s := range t.ready() {
		if s.detour.Kind.Own() || !t.suspicious(s.subflow) || s.rate > omitPart*own || flees && s.isFalling() {
			continue
		}
		if !t.pausesOthers(s.subflow) && (anotherFalls(s) || s.rate*omitCosts.Seconds() > budget) {
			continue
		}
		if best.subflow == nil || cmp.Or(omitted(s).Compare(omitted(best)), cmp.Compare(waitsFor(best), waitsFor(s))) < 0 {
			best = s
		}
	}
	return best
}

// isFalling reports whether the subflow gets much less than usual. If there is another waypoint, the connection leaves such a
// detour (flee.go). An omission would make all wait until it has delivered what it has queued.
func (s *subflow) isFalling() bool {
	was, is := s.habits.fall.Rates()
	return is < othersKeep*was
}

// suspicious reports whether the other subflows are likely to wait for the data of a subflow.
func (t trying) suspicious(s *subflow) bool {
	loss, known := s.loses(t.now)
	if known && loss >= measure.Bad {
		return false // it is set aside for that as soon as it is certain (lossy.go), and the history remembers that
	}
	return known && loss >= omitLoss || t.pausesOthers(s) || s.queue() >= omitQueue &&
		!t.has(func(x *subflow) bool {
			return x != s && !x.backup && x.measuredAt(t.now) && x.queue()*omitQueues > s.queue()
		})
}

// pausesOthers reports whether the others pause because a subflow is slow, and miss about as much as it carries.
func (t trying) pausesOthers(s *subflow) bool {
	rate, known := t.steadyRate(s)
	return known && t.tryouts.omissions.missed > pausesCost*rate && t.isSlow(s)
}

// pauses takes one sample of the pauses of the subflow that carries most: it delivers nothing and misses nothing while
// another delivers.
func (o *omissions) pauses(t turn, carrying []*subflow) {
	var fastest *subflow
	most := 0.0
	for _, s := range carrying {
		if rate, known := t.steadyRate(s); known && rate > most {
			fastest, most = s, rate
		}
	}
	if fastest == nil {
		return
	}
	share := 0.0
	if fastest.dry() >= pausesFrom && !fastest.hasGap() && t.has((*subflow).delivers) {
		share = 1
	}
	o.paused += min(1, fastest.habits.step.elapsed.Seconds()/pausesOver.Seconds()) * (share - o.paused)
	o.missed = most * o.paused / max(1-o.paused, 0.1)
}

// isSlow reports whether the sender's buffer may fill while a subflow carries one burst. What the others carry meanwhile
// comes later in the stream, and stays in the buffer.
func (t trying) isSlow(s *subflow) bool {
	rate, known := t.steadyRate(s)
	if !known || rate <= 0 {
		return false
	}
	others, room := 0.0, sendTrips*rate*s.habits.step.trip.Seconds()
	for _, x := range t.carriers() {
		if r, known := t.steadyRate(x); x != s && known {
			others += r
			room += sendTrips * r * x.habits.step.trip.Seconds()
		}
	}
	return sendBurst/rate*others > room
}

// isRepaired reports whether a direct path that carries delivers nothing now, because lost packets are sent again.
func (t trying) isRepaired(s *subflow) bool {
	if !s.direct || !s.up || s.backup || s.habits == nil || s.habits.step.received+s.habits.step.acked > 0 {
		return false
	}
	return s.habits.step.gap || s.dry() >= repairsDry && !t.has((*subflow).delivers)
}

// delivers reports whether data has just arrived on a subflow.
func (s *subflow) delivers() bool { return s.habits != nil && s.habits.step.received > 0 }

// queue returns the part of the present round trip that is spent in queues.
func (s *subflow) queue() time.Duration { return s.habits.step.trip - s.habits.trip.Base() }

// drains reports whether a detour that is omitted now still delivers what it had queued. The others wait for that.
func (w weighing) drains() bool {
	if w.tryouts == nil || w.now.Sub(w.tryouts.omissions.began) >= omitDrains {
		return false
	}
	return slices.ContainsFunc(w.tryouts.omissions.trial, func(s *subflow) bool { return s.addsNothing() && !s.isQuiet() })
}

// judgeOmission ends an omission when its result is known or something else has changed. It reports whether a detour
// carries again.
func (t trying) judgeOmission(carrying []*subflow, total uint64, flows int) bool {
	o := &t.tryouts.omissions
	t.detours.holds(t.turn)
	gone := slices.ContainsFunc(o.trial, func(s *subflow) bool { return !slices.Contains(t.subflows, s) || !s.addsNothing() })
	if gone || !slices.Equal(carrying, o.carriers) || flows != o.flows || total < o.from.bytes ||
		t.fled.After(o.began) || t.exchanged.After(o.began) || t.now.Sub(o.began) >= omitMost {
		o.wait(t.turn)
		return t.wakeAll()
	}
	age := t.now.Sub(o.began)
	if age < omitDrains && slices.ContainsFunc(o.trial, (*subflow).delivers) {
		o.from = reading{} // the others wait for this data
		return false
	}
	if o.from.at.IsZero() {
		if !slices.ContainsFunc(o.trial, func(s *subflow) bool { return !s.isDrained(age, omitDrains) }) {
			o.from = reading{t.now, total}
		}
		return false
	}
	sum, over := o.from.rate(total, t.now)
	if over < omitFailsIn {
		return false
	}
	keeps := omitKeeps
	if o.byLine {
		keeps = lineKeeps
	}
	falls := sum < keeps*o.before
	if over < omitDuring && !(falls && sum < o.before-o.rate/2) {
		return false
	}
	o.spent += max(0, o.before-sum) * over.Seconds()
	if falls || sum < o.before && !slices.ContainsFunc(carrying, t.presses) { // else the program may have less to send
		o.wait(t.turn)
		if o.byLine {
			o.line.refute(t.now)
			o.alone = time.Time{}
			t.detours.line.isNot(t.turn)
		}
		for _, s := range o.trial {
			t.carryAgain(s)
			t.detours.history.added(s.waypoint(), t.server)
		}
		o.end()
		o.carriers = t.carriers()
		return true
	}
	if o.byLine {
		t.detours.line.proven, t.detours.line.rate = t.now, sum
	}
	for _, s := range o.trial {
		s.aside.why = Verdict{With: o.before, Without: sum, Line: o.byLine}
		if o.byLine {
			s.aside.until = t.now.Add(o.stands)
		} else {
			s.aside.until = t.detours.history.addedNothing(s.waypoint(), t.server, s.aside.why, standsFor, t.now)
		}
		t.departsAside(s)
	}
	o.got, o.guessed, o.second = sum, true, reading{t.now, total} // it may include data that had waited
	o.sum = summed{}                                              // it may include the time in which queues drained
	o.end()
	o.due = t.now
	if o.byLine {
		o.alone = t.now.Add(o.stands)
		o.stands = min(2*o.stands, challengeGapMost)
	}
	return false
}

// begin makes all measurements begin at a reading. What is received while packets are repaired arrives later, all at
// once.
func (o *omissions) begin(at reading) {
	o.second, o.line.from = at, at
	if !o.from.at.IsZero() {
		o.from = at
	}
}

// restart starts the omission under way again.
func (o *omissions) restart(now time.Time) { o.began, o.from = now, reading{} }

// end ends the omission under way.
func (o *omissions) end() {
	clear(o.trial)
	o.trial = o.trial[:0]
}

// stop ends the omission under way without a result. The detours carry again.
func (o *omissions) stop(t turn) {
	if !o.trials() {
		return
	}
	t.carryAgainWhere(func(s *subflow) bool { return s.addsNothing() && slices.Contains(o.trial, s) })
	o.wait(t)
	o.end()
	o.carriers = t.carriers()
}

// wait makes the next omission wait for longer than the last one did.
func (o *omissions) wait(t turn) {
	o.due = t.now.Add(o.gap)
	o.gap = min(2*o.gap, challengeGapMost)
}

// idle returns the detours that stand by because they add nothing and may give their places.
func (t trying) idle() (list []readySubflow) {
	for _, s := range t.subflows {
		if s.addsNothing() && t.exchangeable(s) && t.carriesWithout(s) && t.kind == measure.Bulk {
			list = append(list, readySubflow{s, 0})
		}
	}
	return list
}
