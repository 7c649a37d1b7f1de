package collective

import "time"

const (
	// renewFrom divides the validity: the first attempt comes after one part of it, and before two. With seven days of
	// validity that is within the second day, so the coordinator may be down for five days.
	renewFrom = 7
	// firstRetry bounds the pause after the first failure. The bound doubles with each failure, up to longestRetry.
	firstRetry   = time.Minute
	longestRetry = time.Hour
	// retriesAtLast divides the remaining validity: a pause is never longer than one part of it.
	retriesAtLast = 8
	// quickestRetry is the shortest pause.
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
