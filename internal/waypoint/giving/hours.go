package giving

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

// Hours are the parts of the week at which a waypoint gives; none: always. They are what the wall
// clock shows: where it is put back, an hour that comes twice is twice within them or not, and an
// hour that it leaves out never comes.
type Hours []units.Window

// Open reports whether t is within the hours.
func (h Hours) Open(t time.Time) bool {
	return len(h) == 0 || slices.ContainsFunc(h, func(w units.Window) bool {
		return w.Covers(t.Weekday(), 60*t.Hour()+t.Minute())
	})
}

// horizon is more than two weeks: what comes back every week comes within them, though one day the
// wall clock may leave it out.
const horizon = 16 * 24 * time.Hour

// Next returns the first moment after t at which Open is another than at t; false: there is none.
func (h Hours) Next(t time.Time) (time.Time, bool) {
	for at := t; len(h) > 0 && at.Sub(t) < horizon; {
		next := at.Add(h.untilBoundary(at))
		// As far as that the wall clock runs evenly, unless it is put forward or back before.
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

// untilBoundary returns how long it takes the wall clock to show the next beginning or end of a window.
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
