package path

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file leaves a detour at once whose rate has collapsed in the middle of bulk traffic (the connection flees). An
// ordinary exchange takes its time, because it acts on small differences (exchange.go). A connection flees if:
//
//   - The network made the detour's rate collapse.
//   - The other subflows keep their rates, and did not gain what the detour lost. Otherwise the scheduler may have
//     moved the traffic. If no other subflow carries, the collapse must have lasted for a while. If all fell with the
//     detour, without a queue or losses of their own, they wait for it, because the receiver puts the data in order.
//   - Another waypoint gave much more than what is left, or was not measured yet.
//
// A connection that has fled stays with what it has for a while, which doubles each time. The history learns at once
// what the detour still gives, so later connections do not return to it.

const (
	// othersKeep is the least share of their usual rate that the other subflows keep.
	othersKeep = 0.7
	// othersGain is the largest part of what the detour lost that they may gain.
	othersGain = 0.5
	// othersFall is the share of their usual rate below which all fell together.
	othersFall = 0.35
	// unwitnessed is the time after which a detour that carries alone is left. Before that, this host's own line may
	// be the cause.
	unwitnessed = 5 * time.Second
	// fleesOneIn makes one connection in 4 leave a collapsed detour at each sample, so that not all leave at once.
	fleesOneIn = 4
)

// collapse describes a detour that was left: its waypoint, and its rates before and after the collapse, in bits a
// second.
type collapse struct {
	waypoint string
	was, is  float64
}

// flee leaves a collapsed detour. It reports whether there is one.
func (w weighing) flee() bool {
	if w.kind != measure.Bulk || w.fledLately() {
		return false
	}
	s := w.collapsed()
	if s == nil || w.views.drawAt(w.token, s.detour.Waypoint, w.now)%fleesOneIn != 0 {
		return false
	}
	was, is := s.habits.fall.Rates()
	if w.refuge() < exchangeFactor*is {
		return false
	}
	w.fled = w.now
	w.planEnd(s, SubflowReason{Cause: CauseCollapsed, Numbers: &Numbers{Goodput: is, Before: was}})
	w.giveWay(s)
	w.flights++
	w.fledFrom = &collapse{s.detour.Waypoint, was, is}
	w.detours.history.fell(s.detour.Waypoint, w.server, is, w.now)
	w.together().leaves(s.detour.Waypoint, w.server, w.now)
	return true
}

// giveWay lets another waypoint take the place of a collapsed detour. Unless the server is known to accept one more
// subflow, the detour ends first, because the join would be refused. Ending a collapsed detour loses nothing.
func (w weighing) giveWay(s *subflow) {
	if room, known := w.places.room(w.turn); known && room > 0 {
		s.crowd(w.now)
		return
	}
	s.leaving = true
	if w.tryouts == nil {
		return
	}
	best, goodput := w.bestTried()
	if goodput >= w.refuge() {
		w.tryouts.next, w.tryouts.tries, w.tryouts.nextAt = best, false, w.now
	}
}

// fledLately reports whether the connection fled so recently that it stays with what it has.
func (w weighing) fledLately() bool {
	return w.flights > 0 && w.now.Sub(w.fled) < doubled(staysAfter, int(w.flights)-1, staysMost)
}

// collapsed returns the collapsed detour that should be left, or nil.
func (w weighing) collapsed() *subflow {
	s, lost := w.fell()
	if s == nil {
		return nil
	}
	var usual, recent float64
	signs := false
	for _, x := range w.subflows {
		if x == s || x.backup || !x.measuredAt(w.now) {
			continue
		}
		if was, is := x.habits.fall.Rates(); was >= policy.SameGoodput { // others show nothing, or their usual rate is not known yet
			usual += was
			recent += is
			signs = signs || x.habits.fall.Signs()
		}
	}
	if recent < othersFall*usual {
		switch _, is := s.habits.fall.Rates(); {
		case signs || is == 0 || s.habits.fall.Since() >= unwitnessed:
			w.excuseFalls()
		case s.habits.fall.Has():
			return s
		}
		return nil
	}
	if usual == 0 && s.habits.fall.Since() < unwitnessed || recent < othersKeep*usual || recent-usual > othersGain*lost || !s.habits.fall.Has() {
		return nil
	}
	return s
}

// fell returns the detour that lost most of its usual rate, and the bits a second that it lost.
func (w weighing) fell() (worst *subflow, lost float64) {
	for _, s := range w.subflows {
		if s.backup || !s.measuredAt(w.now) || s.habits.bound > 0 || !w.exchangeable(s) {
			continue
		}
		if was, is := s.habits.fall.Rates(); was-is > lost {
			worst, lost = s, was-is
		}
	}
	return worst, lost
}

// excuseFalls forgets the falls of all subflows, because they fell together.
func (w weighing) excuseFalls() {
	for _, s := range w.subflows {
		if s.habits != nil {
			s.habits.fall.Excuse()
		}
	}
}

// refuge returns the most that the connection may expect of a waypoint that it may take and does not use. A waypoint
// that was not measured counts with the usual goodput.
func (w weighing) refuge() float64 {
	most, _ := w.mostLeft(func(string) bool { return false })
	if !w.detours.exploration.may(w.now) {
		return most
	}
	for o := range w.spare() {
		if w.detours.history.given(o.Waypoint, w.server, w.now) == 0 {
			return max(most, w.detours.usualGoodput(w.turn))
		}
	}
	return most
}

// fell records that bulk traffic gets only goodput on a trail from now on.
func (h history) fell(waypoint string, server netip.AddrPort, goodput float64, now time.Time) {
	key := trailOf(waypoint, server)
	r := h[key]
	r.goodput, r.goodputAt, r.at = goodput, now, now
	h[key] = r
}
