package path

import (
	"slices"
	"time"
)

// This file lets detours carry again that stand by because they add nothing (omit.go). They carry as soon as the sum falls,
// the subflows that carry change or lose packets, or all of them stall (stall.go). One after the other, they also carry again
// for another comparison, at growing intervals. A burden carries earlier only if all the others have less than it had.

const (
	// wakesAt is the share of the sum below which, within a second, detours that stand by carry again.
	wakesAt = 0.8
	// sinksTo is that share within sumBefore.
	sinksTo = 0.95
)

// wakeOmitted lets detours that stand by carry again: all but burdens if a sign shows that they are needed, or else one
// whose time is over, unless the line is still the bottleneck. While a full line repairs many losses, its rate falls for
// a moment. That does not show that detours are needed. It reports whether it let any carry.
func (t trying) wakeOmitted(carrying []*subflow, total uint64, line bool) bool {
	o := &t.tryouts.omissions
	if !t.has((*subflow).addsNothing) {
		return false
	}
	changed, needed := !slices.Equal(carrying, o.carriers), slices.ContainsFunc(carrying, (*subflow).isAccused)
	if long := t.now.Sub(o.second.at); long >= time.Second || total < o.second.bytes {
		needed = needed || total >= o.second.bytes && 8*float64(total-o.second.bytes)/long.Seconds() < wakesAt*o.got
		o.second = reading{t.now, total}
	}
	sum, over := o.sum.rate(total, t.now)
	sinks := sinksTo
	if o.guessed {
		sinks = wakesAt
	}
	needed = needed || over >= sumBefore && sum < sinks*o.got
	needed = changed || needed && !o.line.isRecent(t.now)
	if needed && t.carryAgainWhere(func(s *subflow) bool { return s.addsNothing() && !s.aside.why.isBurden() }) {
		o.wait(t.turn)
		o.end()
		o.carriers, o.alone = t.carriers(), time.Time{}
		return true
	}
	if o.guessed && over >= sumBefore {
		o.got, o.guessed = sum, false
	}
	s := t.find(func(s *subflow) bool { return s.addsNothing() && (!t.now.Before(s.aside.until) || t.isMissed(s)) })
	if s == nil {
		return false
	}
	if t.staysBurden(s) {
		return false
	}
	if line {
		stands := burdenStands
		if s.aside.why.Line { // a comparison has shown that the line is the bottleneck
			stands = o.stands
			o.alone = t.now.Add(stands)
		}
		s.aside.until = t.now.Add(stands)
		return false
	}
	t.carryAgain(s)
	o.carriers, o.due = t.carriers(), t.now
	return true
}

// isMissed reports whether the connection carries less without a burden than the burden alone did, although the network is the
// limit. What it has while the data arrives that the burden had not delivered does not count.
func (t trying) isMissed(s *subflow) bool {
	had := 8 * float64(s.aside.why.Carried) / burdenOver.Seconds()
	return t.now.Sub(s.aside.since) >= resendsFor && t.goodput() < had && t.has(t.presses)
}

// wakeAll lets all detours carry again that are omitted or stand by because they add nothing. It reports whether
// there were any.
func (t trying) wakeAll() (found bool) {
	found = t.carryAgainWhere((*subflow).addsNothing)
	if t.tryouts != nil {
		o := &t.tryouts.omissions
		o.end()
		o.alone = time.Time{}
	}
	return found
}
