package path

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file lets a bulk connection try out waypoints that were not measured. Servers accept few subflows, so usually a detour
// in use gives its place to the waypoint: the detour becomes a backup, its queue drains, and it ends. Then a subflow
// through the waypoint joins.
//
//   - First the connection screens (screen.go). Each of its detours gives its place to the next waypoint as soon as the
//     detour's rate is known. The screening ends when no waypoint is left or enough were measured. Then the waypoints
//     that gave most come back. If the server accepts more detours than the policy, the best ones carry on meanwhile (extra.go).
//     A connection does not screen if others measured its detours and enough waypoints.
//   - Afterwards it challenges (challenge.go). From time to time one waypoint takes the place of the poorest detour.
//     It was not measured yet, or it gave more before its record was lowered. It stays if all of this host's bulk
//     connections to that network of servers together get more, so that one connection does not gain at the cost of
//     others. Otherwise the detour comes back. The time between two challenges doubles while they are lost.
//
// Only a detour that the network limits gives its place, and only one connection to a network of servers tries out
// waypoints at a time. Both phases count as exploring, whose cost explore.go bounds.

const (
	// tryoutGain is the factor by which the rate must rise for a waypoint to take the place of another.
	tryoutGain = 1.1
	// yieldsWithin is the longest time for which a detour that gives its place stays as a backup.
	yieldsWithin = 800 * time.Millisecond
	// joinsWithin is the time within which the waypoint must take the free place.
	joinsWithin = 2 * time.Second
	// mostTryouts is the number of results that a connection remembers.
	mostTryouts = 16
	// holdsFor is the time after its last sample for which a connection that tries out waypoints keeps others towards
	// the same network of servers from doing so.
	holdsFor = 2 * time.Second
)

// tryouts is the state of a connection that tries out waypoints.
type tryouts struct {
	began    time.Time
	results  []Tryout // the oldest first
	screened int      // number of waypoints that took a place in the screening
	returned int      // number of waypoints that came back at its end
	way      screeningWay
	informed bool // other connections measured enough waypoints before it began
	extra    bool // it screens beside its detours (extra.go)
	// extraEnded is when it ceased to do so.
	extraEnded time.Time
	over       bool // the screening has ended
	ended      time.Time
	// unscreened is set if there was no screening because the direct path carries most, but not nearly all.
	unscreened bool

	next   string    // the waypoint that is to take the free place; empty: none
	tries  bool      // it takes the place to be measured
	nextAt time.Time // when the place became free

	challenge *challenge // nil: none is under way
	gap       time.Duration
	due       time.Time // of the next challenge
	sum       summed

	omissions omissions
}

// Tryout is the result of trying out a waypoint.
type Tryout struct {
	Waypoint string
	At       time.Time
	// Goodput is the rate through the waypoint, in bits a second.
	Goodput float64
	// Instead is the waypoint whose place it took in a challenge. It is empty if the waypoint was screened. Sum and
	// Before are the rates of this host's bulk connections to the network of servers, together, with the waypoint and
	// before.
	Instead     string
	Sum, Before float64
	Verdict     TryoutVerdict
}

// TryoutVerdict tells how a tryout ended.
type TryoutVerdict uint8

const (
	// TryoutMeasured means that the waypoint was measured in a screening.
	TryoutMeasured TryoutVerdict = iota
	// TryoutKept means that the waypoint keeps the place.
	TryoutKept
	// TryoutLost means that the connections got too little more with the waypoint, or less.
	TryoutLost
	// TryoutDisturbed means that something else changed meanwhile.
	TryoutDisturbed
	// TryoutLeft means that the waypoint's subflow was left for a reason of its own, such as its loss.
	TryoutLeft
	// TryoutUnreached means that no subflow came up through the waypoint.
	TryoutUnreached
)

// String returns the verdict as a word.
func (v TryoutVerdict) String() string {
	return [...]string{"measured", "kept", "lost", "disturbed", "left", "unreached"}[v]
}

// hold names the connection that may try out waypoints towards a network of servers.
type hold struct {
	token Token
	at    time.Time
}

// holds reports whether the connection may try out waypoints. If so, no other connection to the same network of
// servers may for holdsFor.
func (k *detours) holds(t turn) bool {
	network := prefixOf(t.server.Addr())
	if h, ok := k.trying[network]; ok && h.token != t.token && within(h.at, t.now, holdsFor) {
		return false
	}
	k.trying[network] = hold{t.token, t.now}
	return true
}

// trying is a weighing whose methods decide about tryouts and omissions (omit.go).
type trying struct{ weighing }

func (m *Manager) trying(t turn) trying { return trying{m.weighing(t)} }

// tryOut takes the next step of a connection's tryouts and omissions. It reports whether that changed anything.
func (t trying) tryOut() (changed bool) {
	changed = t.makeRoom()
	if _, ok := t.rule.Policy.(policy.Detours); !ok || t.kind != measure.Bulk {
		t.endExtra()
		woken := t.kind == measure.Messages && t.carryAgainWhere((*subflow).beganAside)
		return t.wakeAll() || woken || changed
	}
	if t.isStalled() {
		return changed
	}
	if t.tryouts == nil {
		t.tryouts = &tryouts{gap: challengeGap, omissions: omissions{gap: omitGap, stands: standsFor}, began: t.now}
		t.tryouts.informed = t.isInformed()
		t.omitFromStart()
	}
	tr := t.tryouts
	line := t.fillsLine()
	if line && !tr.over {
		t.endScreening()
	}
	if sessions := &t.detours.sessions; t.asksSessions(line || sessions.perhapsInOneQueue(t.now)) {
		sessions.ask(t.now)
	}
	if t.carryBesideLine(line) {
		return true
	}
	omits := tr.over && tr.challenge == nil && tr.omissions.looks(t.turn)
	if tr.over && tr.challenge == nil && t.now.Before(tr.due.Add(-2*sumBefore)) && !omits {
		return changed
	}
	total, flows := t.conns.carriedTo(t.server)
	tr.omissions.line.take(line, total, t.now)
	if omits && t.omit(total, flows) {
		return true
	}
	carrying := t.where(func(s *subflow) bool { return s.up && !s.backup })
	steady := !t.has(func(s *subflow) bool { return !s.up || s.yields() || s.leaving }) && t.areSteady(carrying)
	idle := t.has((*subflow).addsNothing)
	// Without a sign that the network limits a subflow, the program may have no more to send.
	steady = steady && slices.ContainsFunc(carrying, func(s *subflow) bool { return (s.detour != nil || idle) && t.presses(s) })
	tr.sum.take(carrying, steady, total, flows, t.now)
	switch {
	case !tr.over:
		return t.screen() || changed
	case tr.challenge != nil:
		return t.judgeChallenge(total) || changed
	case !t.now.Before(tr.due) && !tr.omissions.trials() && !tr.omissions.line.lasts(t.now):
		return t.begin(total) || changed
	}
	return changed
}

// isTrying reports whether the connection tries out a waypoint or omits a detour, or is about to.
func (c *conn) isTrying() bool {
	return c.tryouts != nil && (!c.tryouts.over && c.tryouts.screened > 0 || c.tryouts.challenge != nil || c.tryouts.omissions.trials()) || c.has((*subflow).yields)
}

// stopTrying ends the omission and the challenge of a connection that is not measured any more (closely.go). Detours that
// are omitted, or are about to give their places, carry again.
func (t turn) stopTrying() {
	if t.tryouts == nil {
		return
	}
	for _, s := range t.subflows {
		if s.yields() && !s.leaving {
			t.takePlanned(s)
			t.carryAgain(s)
		}
	}
	if t.tryouts.challenge != nil {
		t.tryouts.endChallenge(TryoutDisturbed, 0, 0, t.now)
	}
	t.tryouts.omissions.stop(t)
}

// yields reports whether the subflow gives its place to a waypoint that is tried out.
func (s *subflow) yields() bool { return s.isAside(yieldsPlace) }

// steadyRate returns a subflow's rate in bits a second. known is false while the rate may still grow. The rate of a
// subflow that has never carried anything stays unknown, because it may be dead (silence.go).
func (t turn) steadyRate(s *subflow) (rate float64, known bool) {
	if !s.measuredAt(t.now) {
		return 0, false
	}
	rate, known = s.habits.steady.Rate(s.minRTT)
	if !known && rate == 0 && s.carried() {
		known = t.now.Sub(later(s.since, s.told.at)) >= measure.SteadyMost
	}
	return rate, known
}

// areSteady reports whether the rates of all these subflows are known.
func (t trying) areSteady(list []*subflow) bool {
	return !slices.ContainsFunc(list, func(s *subflow) bool {
		_, known := t.steadyRate(s)
		return !known
	})
}

// ready returns the detours that may give their places and their rates, the poorest first.
func (t trying) ready() (list []readySubflow) {
	for _, s := range t.subflows {
		if s.backup || !t.exchangeable(s) || !t.carriesWithout(s) {
			continue
		}
		if rate, known := t.steadyRate(s); known {
			list = append(list, readySubflow{s, rate})
		}
	}
	slices.SortStableFunc(list, func(a, b readySubflow) int { return cmp.Compare(a.rate, b.rate) })
	return list
}

type readySubflow struct {
	*subflow
	rate float64
}

// mayYield reports whether the network limits what a detour carries. Without a sign of that, it is assumed after a
// while if the network limits another subflow of the connection.
func (w weighing) mayYield(s *subflow) bool {
	return w.presses(s) || w.now.Sub(later(s.since, s.told.at)) >= measure.SteadyMost && w.has(w.presses)
}

// presses reports whether the network limits what the subflow carries now.
func (w weighing) presses(s *subflow) bool {
	return s.up && !s.backup && s.measuredAt(w.now) && (s.habits.steady.Pressed() || s.pressed(w.now))
}

// yield makes a detour give its place to a waypoint, after a comparison with it. with has what the connections got with
// and without the detour, or is nil.
func (t trying) yield(s *subflow, to policy.Comparison, with *Numbers) {
	t.putAside(s, yieldsPlace, Verdict{Waypoint: to.Waypoint})
	t.planEnd(s, SubflowReason{Cause: CauseYields, Other: &to, Numbers: with})
}

// makeRoom ends a detour that gives its place once its queue has drained. It ends one at a time, so that the other
// waypoint has come before the next one ends. It reports whether one ends.
func (t trying) makeRoom() bool {
	if t.tryouts == nil || t.tryouts.waits(t.now) {
		return false
	}
	for _, s := range t.subflows {
		if !s.yields() || !s.up || s.leaving || !s.isDrained(t.now.Sub(s.aside.since), yieldsWithin) || !t.carriesWithout(s) {
			continue
		}
		t.free(s)
		return true
	}
	return false
}

// free ends a detour that gives its place, and keeps the place for the waypoint.
func (t trying) free(s *subflow) {
	tr, to := t.tryouts, s.aside.why.Waypoint
	s.leaving = true
	tr.next, tr.nextAt = to, t.now
	tr.tries = tr.challenge != nil && tr.challenge.waypoint == to || t.detours.history.given(to, t.server, t.now) == 0
}

// waits reports whether a place is free for a waypoint.
func (tr *tryouts) waits(now time.Time) bool {
	return tr.next != "" && within(tr.nextAt, now, joinsWithin)
}

// nextTryout returns the waypoint that is to take the free place, and whether it takes the place to be measured.
func (t turn) nextTryout() (waypoint string, tries bool) {
	if t.tryouts == nil || !t.tryouts.waits(t.now) {
		return "", false
	}
	return t.tryouts.next, t.tryouts.tries
}

// took records that a subflow through a waypoint was requested, which may take the free place.
func (t turn) took(waypoint string) {
	if t.tryouts != nil && t.tryouts.next == waypoint {
		t.tryouts.next = ""
	}
}

// busy reports whether a detour of the connection joins, ends or is being exchanged.
func (t turn) busy() bool {
	return t.tryouts != nil && t.tryouts.waits(t.now) || t.has((*subflow).isChanging)
}

// of returns the last result of a waypoint. ok is false if there is none.
func (tr *tryouts) of(waypoint string) (r Tryout, ok bool) {
	for _, r := range slices.Backward(tr.results) {
		if r.Waypoint == waypoint {
			return r, true
		}
	}
	return r, false
}

// add records a result. It replaces an earlier result of the same waypoint.
func (tr *tryouts) add(r Tryout) {
	i := slices.IndexFunc(tr.results, func(x Tryout) bool { return x.Waypoint == r.Waypoint })
	if i >= 0 {
		tr.results = slices.Delete(tr.results, i, i+1)
	} else if len(tr.results) >= mostTryouts {
		tr.results = slices.Delete(tr.results, 0, 1)
	}
	tr.results = append(tr.results, r)
}

// result records what a detour gives, for this connection and for others.
func (w weighing) result(s readySubflow) {
	w.tryouts.add(Tryout{Waypoint: s.detour.Waypoint, At: w.now, Goodput: s.rate})
	w.detours.history.tried(s.detour.Waypoint, w.server, max(s.rate, w.together().of(s.detour.Waypoint, w.server).goodput), w.mayYield(s.subflow), w.now)
}

// tried records what a waypoint gave when it was tried out.
func (h history) tried(waypoint string, server netip.AddrPort, goodput float64, pressed bool, now time.Time) {
	key := trailOf(waypoint, server)
	r, known := h[key]
	if !known && len(h) >= mostTrails {
		h.dropOldest()
	}
	if goodput > 0 {
		r.learnGoodput(finding{goodput: goodput, shows: pressed, kind: measure.Bulk}, now)
		r.at = now
		h[key] = r
	}
}
