// Package ratelimit bounds how often each member may do something.
package ratelimit

import (
	"time"

	"golang.org/x/time/rate"
)

// Limits allows each member a burst, then one every interval. It is told the time, and is not safe for concurrent
// use.
type Limits struct {
	burst    int
	interval time.Duration
	members  map[string]*rate.Limiter // those that have used some of their burst
}

// New returns limits that nobody has used yet.
func New(burst int, interval time.Duration) *Limits {
	return &Limits{burst: burst, interval: interval, members: map[string]*rate.Limiter{}}
}

// May reports whether a member is within its limit.
func (l *Limits) May(member string, now time.Time) bool {
	limiter := l.members[member]
	return limiter == nil || limiter.TokensAt(now) >= 1
}

// Spend counts one use.
func (l *Limits) Spend(member string, now time.Time) {
	limiter := l.members[member]
	if limiter == nil {
		limiter = rate.NewLimiter(rate.Every(l.interval), l.burst)
		l.members[member] = limiter
	}
	limiter.AllowN(now, 1)
}

// Sweep forgets the members that have their whole burst again.
func (l *Limits) Sweep(now time.Time) {
	for member, limiter := range l.members {
		if limiter.TokensAt(now) >= float64(l.burst) {
			delete(l.members, member)
		}
	}
}

// Len returns the number of members that are remembered.
func (l *Limits) Len() int { return len(l.members) }
