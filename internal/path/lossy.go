package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file sets paths aside that lose too much while another loses much less. A detour gives up its place as soon as
// another is there to take it. The direct path never ends.
//
// If packets are lost because many flows share a path, TCP can fill the path all the same. So after the direct path
// was set aside in bulk traffic, the connection's rate is compared with its rate before. If what the direct path
// carried is missing, it carries again, and its losses do not count for a while.

const (
	// mostMissed is the loss from which the direct path is not worth having, whatever it carries.
	mostMissed = 0.05
	// missedPart is the part of what the direct path carried that must be missing to show that the path is missed.
	missedPart = 0.5
	// missedAfter is the time after which the connection's rate is that without the direct path.
	missedAfter = 6 * time.Second
	// sparedFor is the time for which the losses of a path that was missed do not count. It doubles each time.
	sparedFor = 30 * time.Second
	// sparedMuch is the factor by which losses must grow to count nevertheless.
	sparedMuch = 2
	// overtakenPart is the part of the packets that seem lost below which the lost ones are the lesser part.
	overtakenPart = 0.5
	// mostSpared bounds the doublings of sparedFor.
	mostSpared = 6
)

func (s *subflow) isLossy() bool { return s.isAside(lossy) }

// setLossyAside sets the subflows aside that lose too much. It reports whether there were any.
func (w weighing) setLossyAside() (found bool) {
	for _, s := range w.subflows {
		if !w.ours(s) || s.backup || !s.measuredAt(w.now) || !s.habits.accused() {
			continue
		}
		if s.isOvertaken(w.now) || w.kind == measure.Bulk && s.unharmed(w.now) {
			s.habits.acquit()
			continue
		}
		p, _ := s.loses(w.now)
		instead, q := w.losesLess(s, p)
		if instead == nil {
			continue
		}
		if s.aside == nil {
			s.aside = &aside{}
		}
		a := s.aside
		if a.missed.spares(p, w.now) {
			s.habits.acquit()
			continue
		}
		until := w.now.Add(doubled(shunnedFor, a.times, shunnedLongest))
		if s.detour != nil {
			if shunned := w.detours.history.shun(s.detour.Waypoint, w.server, p, w.now); shunned.After(until) {
				until = shunned
			}
		}
		*a = aside{cause: lossy, since: w.now, until: until, times: a.times + 1, tried: a.tried, missed: a.missed, why: Verdict{
			Waypoint: instead.waypoint(), Loss: p, OtherLoss: q,
		}}
		if s.direct && w.kind == measure.Bulk && p < mostMissed {
			a.missed.with, a.missed.rate = w.goodput(), max(s.habits.goodput.Rates(w.now))
		}
		s.habits.acquit()
		if instead.setAside() {
			w.carryAgain(instead)
		}
		w.setBackup(s, true)
		w.departsAside(s)
		found = true
	}
	return found
}

// missed tells whether a lossy direct path is missed.
type missed struct {
	with, rate float64   // rates of the connection with the path and of the path alone, in bits a second; zero: nothing to find out
	times      int       // how often it was missed
	until      time.Time // until then, losses like loss do not count
	loss       float64
}

// spares reports whether this loss does not count now, because the path was missed when it lost about as much.
func (x *missed) spares(loss float64, now time.Time) bool {
	return within(now, x.until, sparedFor<<min(x.times, mostSpared)) && loss < sparedMuch*max(x.loss, measure.Bad)
}

// missDirect lets the direct path carry again if the bulk connection misses it. It reports whether it does.
func (w weighing) missDirect() bool {
	s := w.find(func(s *subflow) bool {
		return s.isLossy() && s.aside.missed.with > 0 && w.now.Sub(s.aside.since) >= missedAfter
	})
	if s == nil {
		return false
	}
	x := &s.aside.missed
	misses := w.kind == measure.Bulk && w.goodput() < x.with-missedPart*x.rate && w.has(w.presses)
	if x.with = 0; !misses {
		return false
	}
	x.until, x.loss = w.now.Add(sparedFor<<min(x.times, mostSpared)), s.aside.why.Loss
	x.times++
	w.carryAgain(s)
	return true
}

// goodput returns the connection's rate in the last seconds, in bits a second.
func (w weighing) goodput() (sum float64) {
	for _, s := range w.subflows {
		if s.measuredAt(w.now) {
			sum += max(s.habits.goodput.Rates(w.now))
		}
	}
	return sum
}

func (h *habits) accused() bool { return h.lossIn.IsBad() || h.lossOut.IsBad() }

func (h *habits) acquit() {
	h.lossIn.Reset()
	h.lossOut.Reset()
}

// isOvertaken reports whether most of what seems lost on the subflow was only overtaken, and it loses no more than is
// bearable.
func (s *subflow) isOvertaken(now time.Time) bool {
	p, known := s.loses(now)
	seems, _ := s.seemsToLose(now)
	return known && p < measure.Bearable && p < overtakenPart*seems
}

// unharmed reports whether the subflow carries too much for its losses to be real.
func (s *subflow) unharmed(now time.Time) bool {
	p, known := s.seemsToLose(now)
	if !known {
		return false
	}
	send, receive := s.habits.goodput.Rates(now)
	return measure.Unharmed(p, max(send, receive), s.habits.step.trip)
}

// losesLess returns a subflow that loses much less than s, and how much it loses. p is the loss of s. The direct path
// counts as losing nothing until its loss is known.
func (w weighing) losesLess(s *subflow, p float64) (other *subflow, loss float64) {
	for _, x := range w.subflows {
		if x == s || !w.ours(x) || x.isLossy() || x.isSpent() || x.isSurplus() || x.suspected() || x.isMute() || !x.stayed(w.now) || x.backoff > 0 || x.habits != nil && x.habits.accused() {
			continue
		}
		q, known := x.loses(w.now)
		if !known && !x.direct || known && q*muchLess > p {
			continue
		}
		if other == nil || q < loss {
			other, loss = x, q
		}
	}
	return other, loss
}

// replaceLossy marks detours as leaving that lost too much or whose budget is used up, once another detour is
// established.
func (t turn) replaceLossy() {
	if !t.has(func(s *subflow) bool {
		return s.detour != nil && t.ours(s) && !s.isLossy() && !s.isSpent() && s.stayed(t.now)
	}) {
		return
	}
	t.leaveLossy()
}

// leaveLossy marks detours as leaving that lost too much or whose budget is used up. It reports whether there were
// any.
func (t turn) leaveLossy() (found bool) {
	for _, s := range t.subflows {
		if (s.isLossy() || s.isSpent()) && s.detour != nil && s.up && !s.leaving && t.now.Sub(s.aside.since) >= drains {
			t.leaveFor(s, s.aside.reason())
			found = true
		}
	}
	return found
}
