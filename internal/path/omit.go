package path

import (
	"cmp"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file has a bulk connection do without detours that add nothing. Where all paths share a bottleneck, such as the line at
// home, a detour with a long queue only makes the others wait, because the receiver puts the data in order. So one detour after
// the other becomes a backup for a moment. It stands by if all of this host's bulk connections to that network together get
// as much without it. Otherwise it carries again at once.
//
//   - Only a detour that is likely to make the others wait is omitted: one with a queue that is much longer than theirs, or that loses
//     packets.
//   - What that may cost is bounded: a detour is omitted only if what it carries for omitCosts fits in a small share of what the
//     connection has carried. So detours that carry little come first, and one that carries much is never
//     omitted.
//   - A detour that stands by carries again as soon as the sum falls, what carries changes or loses, or all that carries stalls
//     (stall.go); and for another try, at growing intervals.
//
// Where sessions show that this host's line is the bottleneck (line.go), all detours become backups together, and what that may cost
// is bounded only by how often it is tried.
//
// A challenge may put another waypoint in the place of a detour that stands by (challenge.go).

const (
	// The sum before is measured over at least omitBefore, and that without the detour over omitDuring.
	omitBefore = 2 * time.Second
	omitDuring = 2 * time.Second
	// A detour adds nothing if the sum without it is at least this share of the sum with it. Bytes are read at samples that are a
	// few milliseconds late, on 2 s: so a smaller margin would be noise, and a larger one would give up detours that add something.
	omitKeeps = 0.99
	// With a sign that the line is the bottleneck, the sum before is measured over at least lineBefore, or lineUnsteady while the
	// subflows' rates still change, and this share is enough.
	lineBefore   = time.Second
	lineUnsteady = 2 * time.Second
	lineKeeps    = 0.95
	// A path that has had no data for repairsDry was not just sampled between two segments.
	repairsDry = 200 * time.Millisecond
	// A detour that carries more than lineFollows times what the direct path does is not omitted because of the line.
	lineFollows = 2
	// If half of what it carried is missing after omitFailsIn, it does add something.
	omitFailsIn = 800 * time.Millisecond
	// The measurement begins when the detour's queue has drained, or after omitDrains. It ends without a result after omitMost.
	omitDrains = 2500 * time.Millisecond
	omitMost   = 8 * time.Second
	// Omissions may cost the share omitMay of what the connection carried, and of what it carries in omitCredit. One costs what the
	// detour carries in omitCosts if it adds all of that.
	omitMay    = 0.005
	omitCredit = 20 * time.Second
	omitCosts  = time.Second
	// A queue of omitQueue is long, if it is at least omitQueues times the shortest of the others. omitLoss is a share of packets.
	omitQueue  = 200 * time.Millisecond
	omitQueues = 2
	omitLoss   = 0.01
	// A detour that carries more than this part of the connection's data is not omitted.
	omitPart = 0.25
	// omitGap is the time after an omission that failed. It doubles, up to challengeGapMost. A detour that stands by is tried again
	// after standsFor, which doubles likewise.
	omitGap   = 5 * time.Second
	standsFor = time.Minute
	// Detours that stand by carry again if the sum falls below wakesAt within a second, or below sinksTo within sumBefore.
	wakesAt = 0.8
	sinksTo = 0.95
)

// omissions is the state of a connection that tries to do without detours.
type omissions struct {
	sum         summed
	due         time.Time
	gap, stands time.Duration
	spent       float64 // bits that omissions cost
	line        lineSigns

	trial        []*subflow // which are omitted to find out what they add
	began        time.Time
	byLine       bool    // because of the line
	from         reading // since their queues drained; zero: they have not
	before, rate float64 // the sum with them, and their part
	flows        int     // bulk connections to the network

	carriers []*subflow // while detours stand by
	got      float64    // with these
	second   reading    // at most about a second ago
}

// addsNothing reports whether the subflow stands by because the connection gets as much without it, or to find that out.
func (s *subflow) addsNothing() bool { return s.isAside(addsNothing) }

// trials reports whether detours are omitted to find out what they add.
func (o *omissions) trials() bool { return len(o.trial) > 0 }

// looks reports whether the omissions need what the bulk connections carried.
func (o *omissions) looks(t turn) bool {
	return o.trials() || !t.now.Before(o.due.Add(-omitBefore-closeGap)) || t.now.Sub(o.second.at) >= time.Second && t.has((*subflow).addsNothing)
}

// omit has a connection that has screened do without detours that add nothing. It reports whether that changed anything.
func (m *Manager) omit(t turn, total uint64, flows int) (changed bool) {
	o := &t.tryouts.omissions
	carrying := t.carriers()
	hole := o.line.isRecent(t.now) && t.has((*subflow).isRepaired)
	steady := !t.busy() && !hole && slices.ContainsFunc(carrying, t.presses) && t.areSteady(carrying)
	o.sum.take(carrying, steady, total, flows, t.now)
	if hole {
		o.begin(reading{t.now, total})
	}
	if o.trials() {
		return t.judgeOmission(m, carrying, total, flows)
	}
	line := o.line.last.Equal(t.now)
	if t.wake(carrying, total, line) {
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
		list = m.detoursBehindLine(t)
	} else if s := m.omissible(t, sum); s.subflow != nil {
		list = append(list, s)
	}
	if len(list) == 0 {
		o.due = t.now.Add(time.Second)
		return false
	}
	if !m.detours.holds(t) {
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

// detoursBehindLine returns the detours that carry, may give their places, and pass the line that is full. One that carries much more
// than the direct path does not make it wait, and what carries the rest would take long to fill the line.
func (m *Manager) detoursBehindLine(t turn) (list []readySubflow) {
	direct := 0.0
	for _, s := range t.carriers() {
		if s.direct {
			rate, _ := t.steadyRate(s)
			direct += rate
		}
	}
	for _, s := range t.subflows {
		if s.detour != nil && !s.detour.Kind.own() && !s.backup && m.exchangeable(t, s) && m.passesLine(s.detour, t.now) {
			if rate, _ := t.steadyRate(s); rate <= lineFollows*direct {
				list = append(list, readySubflow{s, rate})
			}
		}
	}
	return list
}

func (s *subflow) isAccused() bool { return s.habits != nil && s.habits.accused() }

// omissible returns a detour that the connection may do without for a moment: of those that were not omitted for the longest time, the
// one over which data waits longest for what it carries. Its subflow is nil if there is none.
func (m *Manager) omissible(t turn, sum float64) (best readySubflow) {
	o := &t.tryouts.omissions
	own := 0.0
	for _, s := range t.carriers() {
		rate, _ := t.steadyRate(s)
		own += rate
	}
	budget := omitMay*(8*float64(t.conn.carried)+omitCredit.Seconds()*sum) - o.spent
	omitted := func(s readySubflow) time.Time {
		if s.aside == nil {
			return time.Time{}
		}
		return s.aside.since
	}
	for _, s := range t.carriers() {
		if was, is := s.habits.fall.Rates(); is < othersKeep*was {
			return best // it collapses, which has a reason (flee.go)
		}
	}
	burden := func(s readySubflow) float64 {
		loss, _ := s.loses(t.now)
		return waits(s.habits.step.trip, loss).Seconds() / max(s.rate, 1)
	}
	for _, s := range m.ready(t) {
		if s.detour.Kind.own() || !t.suspicious(s.subflow) || s.rate > omitPart*own || s.rate*omitCosts.Seconds() > budget {
			continue
		}
		if best.subflow == nil || cmp.Or(omitted(s).Compare(omitted(best)), cmp.Compare(burden(best), burden(s))) < 0 {
			best = s
		}
	}
	return best
}

// suspicious reports whether the other subflows are likely to wait for what a subflow carries.
func (t turn) suspicious(s *subflow) bool {
	loss, known := s.loses(t.now)
	if known && loss >= measure.Bad {
		return false // it is set aside for that as soon as it is certain (weigh.go), and the history remembers it
	}
	return known && loss >= omitLoss || s.queue() >= omitQueue &&
		!t.has(func(x *subflow) bool {
			return x != s && !x.backup && x.measuredAt(t.now) && x.queue()*omitQueues > s.queue()
		})
}

// isRepaired reports whether a direct path that carries delivers nothing now, because packets were lost.
func (s *subflow) isRepaired() bool {
	return s.direct && s.up && !s.backup && s.habits != nil && s.habits.step.received+s.habits.step.acked == 0 && (s.habits.step.gap || s.dry() >= repairsDry)
}

// queue returns how much longer a round trip takes than the shortest.
func (s *subflow) queue() time.Duration { return s.habits.step.trip - s.habits.trip.Base() }

// judgeOmission ends an omission when its result is known, or when something else has changed. It reports whether a detour carries
// again.
func (t turn) judgeOmission(m *Manager, carrying []*subflow, total uint64, flows int) bool {
	o := &t.tryouts.omissions
	m.detours.holds(t)
	gone := slices.ContainsFunc(o.trial, func(s *subflow) bool { return !slices.Contains(t.subflows, s) || !s.addsNothing() })
	if gone || !slices.Equal(carrying, o.carriers) || flows != o.flows || total < o.from.bytes ||
		t.fled.After(o.began) || t.exchanged.After(o.began) || t.now.Sub(o.began) >= omitMost {
		o.wait(t)
		return t.wakeAll()
	}
	age := t.now.Sub(o.began)
	if o.from.at.IsZero() {
		drained := !slices.ContainsFunc(o.trial, func(s *subflow) bool { return s.dry() < drainsDry })
		if age >= drainsLeast && drained || age >= omitDrains {
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
	if falls || !slices.ContainsFunc(carrying, t.presses) { // else the program has no more than this
		o.wait(t)
		if o.byLine {
			o.line.refute(t.now)
			m.detours.line.isNot(t)
		}
		for _, s := range o.trial {
			t.carryAgain(s)
		}
		o.end()
		o.carriers = t.carriers()
		return true
	}
	if o.byLine {
		m.detours.line.proven, m.detours.line.rate = t.now, sum
	}
	for _, s := range o.trial {
		s.aside.why = Verdict{With: o.before, Without: sum, Line: o.byLine}
		s.aside.until = t.now.Add(o.stands)
	}
	o.stands = min(2*o.stands, challengeGapMost)
	o.got, o.second = sum, reading{t.now, total}
	o.end()
	o.due = t.now
	return false
}

// begin has all that is measured begin here, because what is received meanwhile comes later, all at once.
func (o *omissions) begin(at reading) {
	o.second, o.line.from = at, at
	if !o.from.at.IsZero() {
		o.from = at
	}
}

// restart has the measurement begin anew.
func (o *omissions) restart(now time.Time) { o.began, o.from = now, reading{} }

// end ends the measurement.
func (o *omissions) end() {
	clear(o.trial)
	o.trial = o.trial[:0]
}

// wait has the next omission wait for longer than the last time.
func (o *omissions) wait(t turn) {
	o.due = t.now.Add(o.gap)
	o.gap = min(2*o.gap, challengeGapMost)
}

// wake has detours carry again that stood by: all if there is a sign that they are needed, or else one whose time is over, unless the
// line is still the bottleneck. It reports whether it did.
func (t turn) wake(carrying []*subflow, total uint64, line bool) bool {
	o := &t.tryouts.omissions
	if !t.has((*subflow).addsNothing) {
		return false
	}
	needed := !slices.Equal(carrying, o.carriers) || slices.ContainsFunc(carrying, (*subflow).isAccused)
	if long := t.now.Sub(o.second.at); long >= time.Second || total < o.second.bytes {
		needed = needed || total >= o.second.bytes && 8*float64(total-o.second.bytes)/long.Seconds() < wakesAt*o.got
		o.second = reading{t.now, total}
	}
	sum, over := o.sum.rate(total, t.now)
	if needed = needed || over >= sumBefore && sum < sinksTo*o.got; needed {
		o.wait(t)
		return t.wakeAll()
	}
	s := t.find(func(s *subflow) bool { return s.addsNothing() && !t.now.Before(s.aside.until) })
	if s == nil {
		return false
	}
	if line && s.aside.why.Line {
		s.aside.until = t.now.Add(o.stands)
		return false
	}
	t.carryAgain(s)
	o.carriers, o.due = t.carriers(), t.now
	return true
}

// wakeAll has all detours carry again that stood by because they add nothing. It reports whether there were any.
func (t turn) wakeAll() (found bool) {
	found = t.carryAgainWhere((*subflow).addsNothing)
	if t.tryouts != nil {
		t.tryouts.omissions.end()
	}
	return found
}

// idle returns the detours that stand by because they add nothing, and may give their places.
func (m *Manager) idle(t turn) (list []readySubflow) {
	for _, s := range t.subflows {
		if s.addsNothing() && m.exchangeable(t, s) && t.carriesWithout(s) && t.kind == measure.Bulk {
			list = append(list, readySubflow{s, 0})
		}
	}
	return list
}
