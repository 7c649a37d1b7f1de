package giving

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

// Hours are the parts of the week in which a waypoint is open; none: always. They are times of the wall
// clock. When the clock is put back, an hour that it shows twice counts both times. When it is put
// forward, the hour that it skips does not occur.
type Hours []units.Window

// Open reports whether t is within the hours.
func (h Hours) Open(t time.Time) bool {
	return len(h) == 0 || slices.ContainsFunc(h, func(w units.Window) bool {
		return w.Covers(t.Weekday(), 60*t.Hour()+t.Minute())
	})
}

// horizon is more than two weeks. Every boundary of a window recurs within that time, even if the wall
// clock skips it once.
const horizon = 16 * 24 * time.Hour

// Next returns the first moment after t at which Open changes; false: there is none.
func (h Hours) Next(t time.Time) (time.Time, bool) {
	for at := t; len(h) > 0 && at.Sub(t) < horizon; {
		next := at.Add(h.untilBoundary(at))
		// Until next, the wall clock runs evenly, unless it is put forward or back before.
		if _, changes := at.ZoneBounds(); !changes.IsZero() && changes.Before(next) {
			next = changes
		}
		if h.Open(next) != h.Open(t) {
			return next, true
		}
		at = next
	}
	return time.Time{}, false
}

// untilBoundary returns the time until the wall clock shows the next beginning or end of a window.
func (h Hours) untilBoundary(t time.Time) time.Duration {
	const day = 24 * time.Hour
	clock := time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute +
		time.Duration(t.Second())*time.Second + time.Duration(t.Nanosecond())
	least := day
	for _, w := range h {
		for _, minute := range [2]int{w.From, w.To} {
			wait := (time.Duration(minute)*time.Minute - clock + day) % day
			if wait <= 0 {
				wait += day
			}
			least = min(least, wait)
		}
	}
	return least
}
