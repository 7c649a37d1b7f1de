package portmap

import "time"

// epoch is the time for which a router has remembered mappings, in seconds by its own clock.
type epoch struct {
	value uint32
	at    time.Time // when it was received, by our clock
	known bool
}

// next records another value and reports whether the router has lost our mappings since the last
// one, for example by a restart (RFC 6887, 8.5): its clock went back, or did not advance at the
// speed of ours.
func (e *epoch) next(value uint32, now time.Time) (forgot bool) {
	last := *e
	*e = epoch{value: value, at: now, known: true}
	if !last.known {
		return false
	}
	ours, theirs := int64(now.Sub(last.at)/time.Second), int64(value)-int64(last.value)
	if theirs < -1 { // packets may be reordered
		return true
	}
	return ours+2 < theirs-theirs/16 || theirs+2 < ours-ours/16
}
