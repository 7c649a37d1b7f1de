// Package ratelimit limits the rate at which each member may do something.
package ratelimit

import (
	"time"

	"golang.org/x/time/rate"
)

// Limits allows each member a burst, then one use every interval. It is told the time, and is not safe for
// concurrent use.
type Limits struct {
	burst    int
	interval time.Duration
	members  map[string]*allowance // those that have used some of their burst
	swept    time.Time
}

type allowance struct {
	*rate.Limiter
	refused int
}

// New returns limits that nobody has used yet.
func New(burst int, interval time.Duration) *Limits {
	return &Limits{burst: burst, interval: interval, members: map[string]*allowance{}}
}

// May reports whether a member is within its limit.
func (l *Limits) May(member string, now time.Time) bool {
	a := l.members[member]
	return a == nil || a.TokensAt(now) >= 1
}

// Take counts one use if the member is within its limit, and returns 0. Otherwise it returns how many uses it has
// refused since the member last had its whole burst.
func (l *Limits) Take(member string, now time.Time) (refused int) {
	l.sweep(now)
	a := l.members[member]
	if a == nil || a.TokensAt(now) >= float64(l.burst) {
		a = &allowance{Limiter: rate.NewLimiter(rate.Every(l.interval), l.burst)}
		l.members[member] = a
	}
	if a.AllowN(now, 1) {
		return 0
	}
	a.refused++
	return a.refused
}

// sweep forgets the members that have their whole burst again.
func (l *Limits) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Duration(l.burst)*l.interval {
		return
	}
	l.swept = now
	for member, a := range l.members {
		if a.TokensAt(now) >= float64(l.burst) {
			delete(l.members, member)
		}
	}
}
