package bus

import "time"

// What a coordinator takes from one member: bursts for a first copy of the directory, then a steady rate.
const (
	memberRate  = 20.0 // messages a second
	memberBurst = 200.0
	// floodAfter is how many messages too much make a flood, since the member was last within its rate.
	floodAfter = 1000
)

// verdict is what to do with a message.
type verdict int

const (
	accept verdict = iota
	refuse         // and say so
	flood          // as refuse, and the member must be cut
	ignore         // it was told, and cutting it is under way
)

// limiter holds each member to its rate. It is told the time and used by one goroutine.
type limiter struct {
	members map[string]*allowance
	swept   time.Time
}

type allowance struct {
	tokens  float64
	at      time.Time
	refused int
}

func newLimiter() *limiter { return &limiter{members: map[string]*allowance{}} }

// take judges a message of a member that came now.
func (l *limiter) take(member string, now time.Time) verdict {
	l.sweep(now)
	a := l.members[member]
	if a == nil {
		a = &allowance{tokens: memberBurst, at: now}
		l.members[member] = a
	}
	a.refill(now)
	if a.tokens >= memberBurst {
		a.refused = 0
	}
	if a.tokens >= 1 {
		a.tokens--
		return accept
	}
	a.refused++
	switch {
	case a.refused < floodAfter:
		return refuse
	case a.refused == floodAfter:
		return flood
	}
	return ignore
}

func (a *allowance) refill(now time.Time) {
	a.tokens = min(memberBurst, a.tokens+memberRate*now.Sub(a.at).Seconds())
	a.at = now
}

// sweep forgets members that have said nothing for as long as it takes to have the whole burst again.
func (l *limiter) sweep(now time.Time) {
	const whole = memberBurst / memberRate * float64(time.Second)
	if now.Sub(l.swept) < time.Duration(whole) {
		return
	}
	l.swept = now
	for name, a := range l.members {
		if now.Sub(a.at) >= time.Duration(whole) {
			delete(l.members, name)
		}
	}
}
