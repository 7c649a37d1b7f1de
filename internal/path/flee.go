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
func (m *Manager) flee(t turn) bool {
	if t.kind != measure.Bulk || t.fledLately() {
		return false
	}
	s := t.collapsed(m)
	if s == nil || m.views.drawAt(t.token, s.detour.Waypoint, t.now)%fleesOneIn != 0 {
		return false
	}
	was, is := s.habits.fall.Rates()
	if m.refuge(t) < exchangeFactor*is {
		return false
	}
	t.fled = t.now
	t.planEnd(s, SubflowReason{Cause: CauseCollapsed, Numbers: &Numbers{Goodput: is, Before: was}})
	m.giveWay(t, s)
	t.flights++
	t.fledFrom = &collapse{s.detour.Waypoint, was, is}
	m.detours.history.fell(s.detour.Waypoint, t.server, is, t.now)
	m.together(t.now).leaves(s.detour.Waypoint, t.server, t.now)
	return true
}

// giveWay lets another waypoint take the place of a collapsed detour. Unless the server is known to accept one more
// subflow, the detour ends first, because the join would be refused. Ending a collapsed detour loses nothing.
func (m *Manager) giveWay(t turn, s *subflow) {
	if room, known := m.places.room(t); known && room > 0 {
		s.crowded = t.now
		return
	}
	s.leaving = true
	if t.tryouts == nil {
		return
	}
	best, goodput := m.bestTried(t)
	if goodput >= m.refuge(t) {
		t.tryouts.next, t.tryouts.tries, t.tryouts.nextAt = best, false, t.now
	}
}

// fledLately reports whether the connection fled so recently that it stays with what it has.
func (t turn) fledLately() bool {
	return t.flights > 0 && t.now.Sub(t.fled) < doubled(staysAfter, int(t.flights)-1, staysMost)
}

// collapsed returns the collapsed detour that should be left, or nil.
func (t turn) collapsed(m *Manager) *subflow {
	s, lost := t.fell(m)
	if s == nil {
		return nil
	}
	var usual, recent float64
	signs := false
	for _, x := range t.subflows {
		if x == s || x.backup || !x.measuredAt(t.now) {
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
			t.excuseFalls()
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
func (t turn) fell(m *Manager) (worst *subflow, lost float64) {
	for _, s := range t.subflows {
		if s.backup || !s.measuredAt(t.now) || s.habits.bound > 0 || !m.exchangeable(t, s) {
			continue
		}
		if was, is := s.habits.fall.Rates(); was-is > lost {
			worst, lost = s, was-is
		}
	}
	return worst, lost
}

// excuseFalls forgets the falls of all subflows, because they fell together.
func (t turn) excuseFalls() {
	for _, s := range t.subflows {
		if s.habits != nil {
			s.habits.fall.Excuse()
		}
	}
}

// refuge returns the most that the connection may expect of a waypoint that it may take and does not use. A waypoint
// that was not measured counts with the usual goodput.
func (m *Manager) refuge(t turn) float64 {
	most, _ := m.mostLeft(t, func(string) bool { return false })
	if !m.detours.exploration.may(t.now) {
		return most
	}
	for o := range m.spare(t) {
		if m.detours.history.given(o.Waypoint, t.server, t.now) == 0 {
			return max(most, m.detours.usualGoodput(t))
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
