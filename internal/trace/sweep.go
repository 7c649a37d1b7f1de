package trace

import (
	"slices"
	"time"
)

// Timing of a sweep.
const (
	defaultMaxHops = 30
	burst          = 16 // distances that are probed at once
	ahead          = 8  // distances that are probed behind the last that answered
	defaultTries   = 3
	pace           = time.Millisecond
	firstPatience  = 500 * time.Millisecond // for an answer, while no round trip is known
	leastPatience  = 300 * time.Millisecond
	mostPatience   = 2 * time.Second
	grace          = 100 * time.Millisecond // for answers behind the destination's
)

// sweep decides the times and distances of probes. It is told the time and reads no clock.
type sweep struct {
	hops    map[int]*hopState
	order   []int // distances, rising
	bounded bool  // the distances were given: none is added, and all are probed
	tries   int
	pace    time.Duration
	nextAt  time.Time // no probe before
	rtt     time.Duration
	// reached is set when the destination has answered; distance is then the least distance that is known to
	// reach it, 0 if the answer does not show that.
	reached   bool
	reachedAt time.Time
	distance  int
	// silent distances have not answered before: one try is enough.
	silent []int
}

type hopState struct {
	tries    int
	last     time.Time
	answered bool
}

// newSweep probes the distances up to most, or those in only.
func newSweep(most int, only []int, tries int, pace time.Duration) *sweep {
	s := &sweep{hops: map[int]*hopState{}, tries: tries, pace: pace}
	if len(only) > 0 {
		s.order, s.bounded = only, true
	} else {
		for d := 1; d <= most; d++ {
			s.order = append(s.order, d)
		}
	}
	for _, d := range s.order {
		s.hops[d] = &hopState{}
	}
	return s
}

// next returns the distance to probe now. ok is false if no distance is due. Then again is the time of the next call,
// or ended is set.
func (s *sweep) next(now time.Time) (distance int, ok bool, again time.Time, ended bool) {
	ended = true
	for _, d := range s.order {
		h := s.hops[d]
		if h.answered {
			continue
		}
		if !s.wanted(d) {
			// A router's answer may be slower than the destination's.
			if due := s.reachedAt.Add(max(grace, s.rtt)); s.reached && s.distance == 0 && h.tries > 0 && due.After(now) {
				ended, again = false, earlier(again, due)
			}
			continue
		}
		due := h.last.Add(s.patience(h.tries))
		if h.tries == 0 {
			due = now
		}
		if h.tries >= s.triesFor(d) {
			if due.After(now) {
				ended, again = false, earlier(again, due) // the last try may still be answered
			}
			continue
		}
		ended = false
		if due.After(now) {
			again = earlier(again, due)
			continue
		}
		if s.nextAt.After(now) {
			return 0, false, s.nextAt, false
		}
		return d, true, now, false
	}
	return 0, false, again, ended
}

// tried notes that a distance is probed now.
func (s *sweep) tried(distance int, now time.Time) {
	h := s.hops[distance]
	h.tries, h.last, s.nextAt = h.tries+1, now, now.Add(s.pace)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// wanted reports whether to wait for an answer from the distance.
func (s *sweep) wanted(d int) bool {
	if s.bounded {
		return true
	}
	last := s.lastAnswered()
	if s.reached {
		// The distances between the last router and the destination are verified afterwards.
		return d < s.distance || d <= last
	}
	return d <= burst || d <= last+ahead
}

func (s *sweep) lastAnswered() (last int) {
	for d, h := range s.hops {
		if h.answered && d > last {
			last = d
		}
	}
	return last
}

// triesFor returns the maximum number of probes for a distance.
func (s *sweep) triesFor(d int) int {
	if slices.Contains(s.silent, d) {
		return 1
	}
	return s.tries
}

// patience returns the time to wait for the answer to a try.
func (s *sweep) patience(try int) time.Duration {
	if s.rtt == 0 {
		return firstPatience
	}
	// Routers that limit their rate often send one error a second.
	wait := max(leastPatience, 3*s.rtt)
	if try > 1 {
		wait = max(wait, time.Second)
	}
	return min(mostPatience, wait)
}

// heard notes a router's answer.
func (s *sweep) heard(distance int, rtt time.Duration) {
	if h := s.hops[distance]; h != nil {
		h.answered = true
	}
	s.rtt = max(s.rtt, rtt)
}

// arrived notes the destination's answer at a time, to a probe of some distance, or 0 if that is not known.
func (s *sweep) arrived(now time.Time, distance int, rtt time.Duration) {
	if !s.reached {
		s.reached, s.reachedAt = true, now
	}
	s.rtt = max(s.rtt, rtt)
	if distance > 0 && (s.distance == 0 || distance < s.distance) {
		s.distance = distance
	}
	if h := s.hops[distance]; h != nil {
		h.answered = true
	}
}
