package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file sets paths aside that lose too much, while there is one that loses much less. A detour gives up its place as soon as
// another is there to take it. The direct path never ends.
//
// Packets that are lost because many share a path show nothing against it: TCP fills it all the same. So after the direct path was
// set aside in bulk traffic, what the connection gets is compared with what it got. If what the direct path carried is missing, it carries
// again, and its losses do not count for a while.

const (
	// A direct path that loses mostMissed is not worth having, whatever it carries. One that loses less is missed if more than missedPart of what it carried is missing after missedAfter, when the goodput is that of
	// the time without it. Its losses do not count for sparedFor then, which doubles each time, unless they become sparedMuch times as many.
	mostMissed  = 0.05
	missedPart  = 0.5
	missedAfter = 6 * time.Second
	sparedFor   = 30 * time.Second
	sparedMuch  = 2
	mostSpared  = 6 // doublings
)

func (s *subflow) isLossy() bool { return s.isAside(lossy) }

// setLossyAside sets those subflows aside that lose too much. It reports whether there were any.
func (m *Manager) setLossyAside(t turn) (found bool) {
	for _, s := range t.subflows {
		if !t.ours(s) || s.backup || !s.measuredAt(t.now) || !s.habits.accused() {
			continue
		}
		if t.kind == measure.Bulk && s.unharmed(t.now) {
			s.habits.acquit()
			continue
		}
		p, _ := s.loses(t.now)
		instead, q := t.losesLess(s, p)
		if instead == nil {
			continue
		}
		if s.aside == nil {
			s.aside = &aside{}
		}
		a := s.aside
		if a.missed.spares(p, t.now) {
			s.habits.acquit()
			continue
		}
		until := t.now.Add(min(shunnedFor<<min(a.times, 10), shunnedLongest))
		if s.detour != nil {
			if shunned := m.detours.history.shun(s.detour.Waypoint, t.server, p, t.now); shunned.After(until) {
				until = shunned
			}
		}
		*a = aside{cause: lossy, since: t.now, until: until, times: a.times + 1, tried: a.tried, missed: a.missed, why: Verdict{
			Waypoint: instead.waypoint(), Loss: p, OtherLoss: q,
		}}
		if s.direct && t.kind == measure.Bulk && p < mostMissed {
			a.missed.with, a.missed.rate = t.goodput(), max(s.habits.goodput.Rates(t.now))
		}
		s.habits.acquit()
		if instead.setAside() {
			t.carryAgain(instead)
		}
		t.setBackup(s, true)
		found = true
	}
	return found
}

// missed is what shows whether a lossy direct path is missed.
type missed struct {
	with, rate float64   // what the connection got with it, and its part, in bits a second; zero: that need not be found out
	times      int       // how often it was missed
	until      time.Time // a loss like loss does not count
	loss       float64
}

// spares reports whether this loss does not count now, because the path was missed when it had lost about as much.
func (x *missed) spares(loss float64, now time.Time) bool {
	return within(now, x.until, sparedFor<<min(x.times, mostSpared)) && loss < sparedMuch*max(x.loss, measure.Bad)
}

// missDirect has the direct path carry again if the bulk connection misses what it carried. It reports whether it does.
func (t turn) missDirect() bool {
	s := t.find(func(s *subflow) bool {
		return s.isLossy() && s.aside.missed.with > 0 && t.now.Sub(s.aside.since) >= missedAfter
	})
	if s == nil {
		return false
	}
	x := &s.aside.missed
	misses := t.kind == measure.Bulk && t.goodput() < x.with-missedPart*x.rate && t.has(t.presses)
	if x.with = 0; !misses {
		return false
	}
	x.until, x.loss = t.now.Add(sparedFor<<min(x.times, mostSpared)), s.aside.why.Loss
	x.times++
	t.carryAgain(s)
	return true
}

// goodput returns the bits a second that the connection got in the last seconds.
func (t turn) goodput() (sum float64) {
	for _, s := range t.subflows {
		if s.measuredAt(t.now) {
			sum += max(s.habits.goodput.Rates(t.now))
		}
	}
	return sum
}

func (h *habits) accused() bool { return h.lossIn.IsBad() || h.lossOut.IsBad() }

func (h *habits) acquit() {
	h.lossIn.Reset()
	h.lossOut.Reset()
}

// unharmed reports whether the subflow carries too much for its packets to be lost as it seems.
func (s *subflow) unharmed(now time.Time) bool {
	p, known := s.loses(now)
	if !known {
		return false
	}
	send, receive := s.habits.goodput.Rates(now)
	return measure.Unharmed(p, max(send, receive), s.habits.step.trip)
}

// losesLess returns a subflow that loses much less than s, which loses p, and how much. The direct path is
// believed to until its loss is known.
func (t turn) losesLess(s *subflow, p float64) (other *subflow, loss float64) {
	for _, x := range t.subflows {
		if x == s || !t.ours(x) || x.isLossy() || x.isSpent() || x.suspected() || !x.stayed(t.now) || x.backoff > 0 || x.habits != nil && x.habits.accused() {
			continue
		}
		q, known := x.loses(t.now)
		if !known && !x.direct || known && q*muchLess > p {
			continue
		}
		if other == nil || q < loss {
			other, loss = x, q
		}
	}
	return other, loss
}

// replaceLossy marks detours that lost too much, or whose budget is used up, as leaving, once another detour is there.
func (t turn) replaceLossy() {
	if !t.has(func(s *subflow) bool {
		return s.detour != nil && t.ours(s) && !s.isLossy() && !s.isSpent() && s.stayed(t.now)
	}) {
		return
	}
	t.leaveLossy()
}

// leaveLossy marks the detours that lost too much, or whose budget is used up, as leaving. It reports whether there were any.
func (t turn) leaveLossy() (found bool) {
	for _, s := range t.subflows {
		if (s.isLossy() || s.isSpent()) && s.detour != nil && s.up && !s.leaving && t.now.Sub(s.aside.since) >= drains {
			s.leaving, found = true, true
		}
	}
	return found
}
