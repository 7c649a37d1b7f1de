package portmap

import "time"

// epoch is what a router said of how long it has been remembering, in seconds by its own clock.
type epoch struct {
	value uint32
	at    time.Time // when it said so, by ours
	known bool
}

// next takes another value and tells whether the router has forgotten our ports since the last one, for
// example by a restart (RFC 6887, 8.5): its clock went back, or not at the speed of ours.
func (e *epoch) next(value uint32, now time.Time) (forgot bool) {
	last := *e
	*e = epoch{value: value, at: now, known: true}
	if !last.known {
		return false
	}
	ours, theirs := int64(now.Sub(last.at)/time.Second), int64(value)-int64(last.value)
	if theirs < -1 { // packets may overtake each other
		return true
	}
	return ours+2 < theirs-theirs/16 || theirs+2 < ours-ours/16
}
