package collective

import "time"

// Times of renewal. With seven days of validity, the first attempt is within the second day, so the coordinator
// may be down for five days.
const (
	renewFrom     = 7 // from a seventh of the validity on
	firstRetry    = time.Minute
	longestRetry  = time.Hour
	retriesAtLast = 8 // near the end, retry after an eighth of the remaining time at most
	quickestRetry = time.Second
)

// RenewAt returns the time of the first attempt to renew a certificate. The spread, from 0 to 1, differs between
// members, so that members that joined together do not renew together.
func RenewAt(notBefore, notAfter time.Time, spread float64) time.Time {
	part := notAfter.Sub(notBefore) / renewFrom
	return notBefore.Add(part + time.Duration(spread*float64(part)))
}

// RetryAt returns the time of the next attempt after a number of failures in a row, from 1 on. The spread, from
// 0 to 1, should be different each time.
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
