package bus

import "time"

// Limits of one member's messages: a burst, for a first copy of the directory, then a steady rate.
const (
	memberRate  = 20.0 // messages a second
	memberBurst = 200.0
	// floodAfter is the number of excess messages that are a flood, since the member was last within its rate.
	floodAfter = 1000
)

// verdict is the limiter's decision about a message.
type verdict int

const (
	accept verdict = iota
	refuse         // and answer so
	flood          // refuse, and cut the member off
	ignore         // the member is being cut off
)

// limiter bounds each member's rate. It is told the time, and is not safe for concurrent use.
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

// take decides about a member's message that has arrived now.
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

// sweep forgets members that have their whole burst again.
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
