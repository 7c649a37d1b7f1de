package giving

import "time"

const (
	// A waypoint becomes loaded when its share was at least Busy for busyAfter. It is no longer loaded when its share
	// was below idleBelow for idleAfter.
	Busy      = 0.9
	busyAfter = 2 * time.Second
	idleBelow = 0.85
	idleAfter = 2 * time.Second
	// LoadedFor is the time for which a report of load is valid. While the waypoint stays loaded, it reports again when
	// renewLoad of that time is left.
	LoadedFor = 15 * time.Second
	renewLoad = 8 * time.Second
	// fewMembers is the number of members that never make a waypoint loaded: nobody gains if a member that is alone leaves.
	fewMembers = 1
)

// Usage has the recent use of a waypoint.
type Usage struct {
	Members int // who sent or received
	// Rate is in bytes per second, of the direction with more. Limit is the operator's; 0: there is none.
	Rate, Limit float64
	// Processor is the share of its time that the busiest processor spent on forwarding.
	Processor float64
}

// share returns the used share of the waypoint's capacity, 0..1: of its rate or its processors, whichever is larger.
func (u Usage) share() float64 {
	share := u.Processor
	if u.Limit > 0 {
		share = max(share, u.Rate/u.Limit)
	}
	return share
}

// Full reports whether nearly all of the waypoint's capacity is used, even if only by one member.
func (u Usage) Full() bool { return u.share() >= Busy }

// Gives returns the rate that one more member would get, in bytes per second: the rest that the others leave, or an equal share if
// that is more. It returns zero if nothing is used, because the waypoint's capacity is not known then.
func (u Usage) Gives() float64 {
	share := u.share()
	if share <= 0 {
		return 0
	}
	all := u.Rate / share
	return max(all-u.Rate, all/float64(u.Members+1))
}

// Load decides whether a waypoint is loaded, so that members should use another. The zero value is not loaded.
type Load struct {
	until      time.Time // zero: not loaded
	busy, idle time.Time // beginning of the present busy and idle time; zero: neither
}

// Take takes in the usage until now. It returns the time until which the waypoint is loaded; zero: it is not.
func (l *Load) Take(u Usage, now time.Time) time.Time {
	share := u.share()
	begin := func(since *time.Time, is bool) (lasts time.Duration) {
		switch {
		case !is:
			*since = time.Time{}
			return -1
		case since.IsZero() || now.Before(*since): // the clock was set back
			*since = now
		}
		return now.Sub(*since)
	}
	busy := begin(&l.busy, u.Full() && u.Members > fewMembers)
	idle := begin(&l.idle, share < idleBelow || u.Members <= fewMembers)
	switch loaded := !l.until.IsZero(); {
	case idle >= idleAfter:
		l.until = time.Time{}
	case !loaded && busy >= busyAfter, loaded && l.until.Sub(now) < renewLoad, l.until.Sub(now) > LoadedFor:
		l.until = now.Add(LoadedFor)
	}
	return l.until
}
