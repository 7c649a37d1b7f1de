package giving

import "time"

const (
	// A share from Busy on, for busyAfter, makes a waypoint loaded. It is so no longer when the share was below
	// idleBelow for idleAfter.
	Busy      = 0.9
	busyAfter = 2 * time.Second
	idleBelow = 0.85
	idleAfter = 2 * time.Second
	// LoadedFor is the time for which a waypoint says that it is loaded. While it stays loaded, it says so again when
	// renewLoad of that is left.
	LoadedFor = 15 * time.Second
	renewLoad = 8 * time.Second
	// fewMembers may use a waypoint as much as they like: where one member is alone, nobody would gain if it left.
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

// share returns the share of what the waypoint can do.
func (u Usage) share() float64 {
	share := u.Processor
	if u.Limit > 0 {
		share = max(share, u.Rate/u.Limit)
	}
	return share
}

// Full reports whether nearly all that the waypoint can do is used, if only by one member.
func (u Usage) Full() bool { return u.share() >= Busy }

// Gives returns the rate that one more member would get, in bytes per second: what the others leave, or an equal share. It returns zero
// if nothing is used, because the waypoint's capacity is not known then.
func (u Usage) Gives() float64 {
	share := u.share()
	if share <= 0 {
		return 0
	}
	all := u.Rate / share
	return max(all-u.Rate, all/float64(u.Members+1))
}

// Load decides whether a waypoint is loaded, so that members had better use another. The zero value is not loaded.
type Load struct {
	until      time.Time // zero: not loaded
	busy, idle time.Time // since when it is one or the other
}

// Take takes in the usage until now. It returns until when the waypoint is loaded, or zero.
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
