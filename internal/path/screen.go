package path

import (
	"cmp"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file is the first phase of a bulk connection's tryouts (tryout.go): it measures one waypoint after the other, in
// the places of its detours or beside them (extra.go), and then keeps those that give most.

const (
	// screensMost is the number of waypoints that a connection screens at most.
	screensMost = 6
	// returnsMost is the number of waypoints that come back at most when the screening ends.
	returnsMost = 4
	// screensBelow is the share of the data on the direct path from which a connection does not screen. A screening is
	// then likely to cost more than it gains: in the lab it cost 10 % of 20 s where no detour could add anything.
	// Challenges try only one waypoint at a time. They begin soon if the direct path carries less than nearlyAll, because
	// other waypoints may add more than those in use.
	screensBelow = 0.5
	nearlyAll    = 0.9
	// goesOnBelow takes the place of nearlyAll once it screens beside its detours, because the share varies by some percent.
	goesOnBelow = 0.95
	// A connection of which all detours are burdens screens others if it shows that the line is not the bottleneck. It must
	// show between freeAfter and freeWithin after the last one began to stand by: a line that has just become full has no
	// queue for seconds.
	freeAfter  = 2 * time.Second
	freeWithin = 5 * time.Second
	// similar is the share of the direct path's rate that a detour must carry for the connection to screen nevertheless, one
	// detour at a time. Then other waypoints are likely to carry as much as the direct path, too. It also screens
	// while it may have an extra detour, because then it gives up nothing.
	similar = 0.25
)

// screeningWay says when the detours of a connection give their places in a screening.
type screeningWay uint8

const (
	// allAtOnce means that several detours may give their places at the same time.
	allAtOnce screeningWay = iota
	// oneByOne means that only one detour at a time gives its place, because the direct path carries most.
	oneByOne
	// onlyBeside means that the connection screens only as long as it can do so beside its detours, or in the places of
	// those that stand by, because the direct path carries much more than they do.
	onlyBeside
)

// screen gives the place of a detour whose rate is known to a waypoint that was not measured, or adds a place for it. If no such
// waypoint is left, it gives the place to a waypoint that gave more. It reports whether a waypoint has a place.
func (t trying) screen() bool {
	tr := t.tryouts
	ready := t.ready()
	standBy := tr.screened == 0 && tr.omissions.guessed && !t.has(func(s *subflow) bool { return s.detour != nil && !s.addsNothing() })
	onlyBurdens := standBy && !t.has(func(s *subflow) bool { return s.addsNothing() && !s.aside.why.isBurden() })
	if standBy && (!onlyBurdens || t.hasStoodBy(freeWithin)) {
		t.endScreening() // so that the omissions go on
		return false
	}
	if tr.screened > 0 || onlyBurdens && t.hasStoodBy(freeAfter) && t.isFree() {
		ready = append(t.idle(), ready...) // a burden that stands by would keep its place from the others
	}
	if len(ready) == 0 || t.busy() {
		return false
	}
	if tr.extra && !t.has(func(s *subflow) bool { rate, _ := t.steadyRate(s); return rate > 0 }) {
		return false // the program pauses, so the rates show nothing
	}
	unmeasured := t.unmeasured()
	if !t.isWorthScreening(ready, unmeasured) || !t.detours.holds(t.turn) {
		return false
	}
	for _, s := range ready {
		if !s.addsNothing() {
			t.result(s)
		}
	}
	if tr.extra && t.has(func(s *subflow) bool { return s.detour != nil && s.isLossy() }) {
		return t.leaveLossy()
	}
	next := ""
	if len(unmeasured) > 0 && tr.screened < screensMost && t.detours.exploration.may(t.now) {
		next = unmeasured[0]
	}
	if next != "" && t.mayAddExtra() {
		t.countScreened(next)
		tr.extra = true
		tr.next, tr.tries, tr.nextAt = next, true, t.now
		return true
	}
	return t.givePlace(ready, next)
}

// isWorthScreening reports whether the connection begins or goes on to screen. Otherwise it ends the screening, unless that is
// not known yet.
func (t trying) isWorthScreening(ready []readySubflow, unmeasured []string) bool {
	tr := t.tryouts
	if tr.screened == 0 && (len(unmeasured) == 0 || tr.informed) {
		t.endScreening()
		return false
	}
	share := t.directShare()
	if share < screensBelow || tr.screened > 0 && tr.way != onlyBeside {
		return true
	}
	if tr.screened == 0 && t.has(t.mayGrow) {
		return false
	}
	direct, _ := t.carriedRates()
	tooMuch := nearlyAll
	if tr.screened > 0 {
		tooMuch = goesOnBelow
	}
	switch best := ready[len(ready)-1]; {
	case share < tooMuch && best.rate >= similar*direct:
		tr.way = oneByOne
	case best.addsNothing() || share < tooMuch && (t.hasExtra() || t.mayAddExtra()):
		tr.way = onlyBeside
	default:
		t.endScreening()
		tr.way, tr.unscreened = allAtOnce, share < nearlyAll
		tr.gap = tr.leastGap()
		return false
	}
	return true
}

// hasStoodBy reports whether all detours that add nothing have stood by for this time.
func (t trying) hasStoodBy(long time.Duration) bool {
	return !t.has(func(s *subflow) bool { return s.addsNothing() && t.now.Sub(s.aside.since) < long })
}

// givePlace gives the place of a detour to the next waypoint that was not measured. If there is none, it gives it to one that gave
// more, or else ends the screening. It reports whether it gave a place.
func (t trying) givePlace(ready []readySubflow, next string) bool {
	tr := t.tryouts
	settled := true
	for i, s := range ready {
		if !s.addsNothing() && !t.mayYield(s.subflow) {
			settled = settled && t.now.Sub(later(s.since, s.told.at)) >= 2*measure.SteadyMost
			continue
		}
		if (next != "" || tr.extra) && !t.mayGive(s) {
			continue
		}
		if next != "" {
			t.countScreened(next)
			t.yield(s.subflow, policy.Comparison{Waypoint: next, Goodput: s.rate}, nil)
			return true
		}
		stays := s.rate
		if tr.extra {
			stays = ready[min(i+1, len(ready)-1)].rate // because the poorest ends anyway
		}
		if best, goodput := t.bestTried(); goodput >= tryoutGain*stays && goodput > 0 && tr.returned < returnsMost {
			tr.returned++
			t.yield(s.subflow, policy.Comparison{Waypoint: best, Goodput: s.rate, OtherGoodput: goodput}, nil)
			return true
		}
	}
	all := t.beside(func(s *subflow) bool { return s.detour != nil && !t.detours.steering.wants(s.waypoint()) })
	if tr.screened > 0 && next == "" && settled && len(ready) == all {
		t.endScreening()
	}
	return false
}

// countScreened counts a waypoint that gets a place to be measured.
func (t trying) countScreened(waypoint string) {
	t.tryouts.screened++
	t.detours.history.retries(waypoint, t.server, t.now)
}

// mayGive reports whether a detour may give its place in the screening now. All of a connection's detours may at the same time,
// unless the direct path carries most, or the connection has an extra detour (extra.go). Then only the poorest may. While it
// gives its place, another one is not the poorest.
func (t trying) mayGive(s readySubflow) bool {
	return t.tryouts.way != oneByOne && !t.tryouts.extra || !t.has(func(x *subflow) bool {
		rate, _ := t.steadyRate(x)
		return rate < s.rate && t.exchangeable(x) && (!x.backup || x.yields())
	})
}

// directShare returns the share of the connection's data that the direct path carries.
func (t trying) directShare() float64 {
	direct, sum := t.carriedRates()
	if sum == 0 {
		return 0
	}
	return direct / sum
}

// carriedRates returns the rates of the direct path and of all paths that carry, in bits a second. A subflow whose rate is not
// known yet (mayGrow) does not count.
func (t trying) carriedRates() (direct, sum float64) {
	for _, s := range t.subflows {
		if s.backup || !s.measuredAt(t.now) {
			continue
		}
		rate, _ := t.steadyRate(s)
		sum += rate
		if s.direct {
			direct += rate
		}
	}
	return direct, sum
}

// mayGrow reports whether the subflow carries data and its rate may still grow.
func (t trying) mayGrow(s *subflow) bool {
	if !s.up || s.backup || !s.carried() || !s.measuredAt(t.now) {
		return false
	}
	_, known := t.steadyRate(s)
	return !known
}

// isInformed reports whether other connections measured the waypoints in use and at least as many as they did not. A
// screening would then give the place of a detour that is known to be good to one that is probably not. Challenges try
// the other waypoints one at a time.
func (t trying) isInformed() bool {
	measured := map[string]bool{}
	for _, s := range t.subflows {
		if s.detour == nil || s.detour.Kind.Own() {
			continue
		}
		if t.detours.history.given(s.detour.Waypoint, t.server, t.now) == 0 {
			return false
		}
		measured[s.detour.Waypoint] = true
	}
	if len(measured) == 0 {
		return false
	}
	for o := range t.spare() {
		if !o.Kind.Own() && t.detours.history.given(o.Waypoint, t.server, t.now) > 0 {
			measured[o.Waypoint] = true
		}
	}
	return len(measured) >= len(t.unmeasured())
}

// endScreening ends the screening. The detours in use keep their places.
func (t trying) endScreening() {
	t.tryouts.over, t.tryouts.ended, t.tryouts.due = true, t.now, t.now.Add(sumBefore)
	t.endExtra()
	if t.tryouts.screened > 0 {
		for _, s := range t.subflows {
			t.claim(s)
		}
	}
}

// claim makes a detour that was tried out keep its place, and records the result as the reason.
func (t trying) claim(s *subflow) {
	if s.why == nil || s.detour == nil {
		return
	}
	for _, r := range slices.Backward(t.tryouts.results) {
		if r.Waypoint == s.detour.Waypoint {
			why := *s.why // others may share it
			why.Explored, why.tried = false, &r
			s.why = &why
			return
		}
	}
}

// unmeasured returns the waypoints that the connection may take and that were not measured. Those that other members
// rate best come first.
func (t trying) unmeasured() []string {
	type found struct {
		waypoint string
		rank     int
		draw     uint64
	}
	var list []found
	for o := range t.spare() {
		if t.isUnmeasured(o) && !slices.ContainsFunc(list, func(x found) bool { return x.waypoint == o.Waypoint }) {
			list = append(list, found{o.Waypoint, t.detours.rank(o.Waypoint, false, true, t.now), t.views.draw(t.token, o.Waypoint)})
		}
	}
	slices.SortFunc(list, func(a, b found) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.draw, b.draw)) })
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].waypoint
	}
	return names
}

// isUnmeasured reports whether it is unknown what a waypoint gives bulk traffic, it is worth trying out, and the
// connection has not tried it out.
func (t trying) isUnmeasured(o *offered) bool {
	r, _ := t.detours.history.of(o.Waypoint, t.server)
	if o.Kind.Own() || r.isShunned(t.now) || r.nothing.lasts(t.now) || t.detours.history.given(o.Waypoint, t.server, t.now) > 0 {
		return false
	}
	if lost := within(r.at, t.now, trustsFor) && r.lost() >= measure.Bad; lost || r.retries > 0 && within(r.retried, t.now, retryTime(r.retries)) {
		return false
	}
	_, tried := t.tryouts.of(o.Waypoint)
	return !tried && !t.has(func(s *subflow) bool { return s.yields() && s.aside.why.Waypoint == o.Waypoint })
}

// isAvoided reports whether a waypoint's detours lately lost too much, or added nothing.
func (w weighing) isAvoided(o *offered) bool {
	r, _ := w.detours.history.of(o.Waypoint, w.server)
	return r.isShunned(w.now) || r.nothing.lasts(w.now)
}

// bestTried returns the waypoint that gives most of those that the connection may take. What the connection measured
// itself comes before what others of this host measured.
func (w weighing) bestTried() (best string, goodput float64) {
	for o := range w.spare() {
		if o.Kind.Own() || w.isAvoided(o) || w.has(func(s *subflow) bool { return s.yields() && s.aside.why.Waypoint == o.Waypoint }) {
			continue
		}
		gives := w.detours.leaves(o.Waypoint, w.server, w.now)
		if r, tried := w.tryouts.of(o.Waypoint); tried {
			gives = r.Goodput
		}
		if gives > goodput {
			best, goodput = o.Waypoint, gives
		}
	}
	return best, goodput
}
