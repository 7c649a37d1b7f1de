package collective

import "time"

// When a member's certificate is renewed. Of seven days, the first try comes within the second day; the
// coordinator may then be away for five.
const (
	renewFrom     = 7 // from one part in seven of the life on
	firstRetry    = time.Minute
	longestRetry  = time.Hour
	retriesAtLast = 8 // as the end nears, not later than after an eighth of what is left
	quickestRetry = time.Second
)

// RenewAt is when a certificate is first to be renewed. The spread, from 0 to 1, is a member's own: it
// keeps members that joined together from coming together.
func RenewAt(notBefore, notAfter time.Time, spread float64) time.Time {
	part := notAfter.Sub(notBefore) / renewFrom
	return notBefore.Add(part + time.Duration(spread*float64(part)))
}

// RetryAt is when to try again after so many failures in a row, the first being 1. The spread, from 0 to
// 1, should be another one each time.
func RetryAt(notAfter, now time.Time, failures int, spread float64) time.Time {
	wait := longestRetry
	if n := failures - 1; n < 16 {
		wait = min(wait, firstRetry<<max(n, 0))
	}
	if left := notAfter.Sub(now); left > 0 {
		wait = min(wait, left/retriesAtLast)
	}
	wait = time.Duration(float64(wait) * (1 + spread) / 2)
	return now.Add(max(wait, quickestRetry))
}
