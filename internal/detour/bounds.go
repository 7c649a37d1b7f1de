package detour

import "time"

// Waypoints choose the lease of a grant, and the time until a client asks again. The bounds keep a waypoint from making a
// client ask all the time, or never again.
const (
	// leastLease and mostLease are also the bounds of a waypoint's own configuration (mapping_lifetime).
	leastLease = 10 * time.Second
	mostLease  = 24 * time.Hour
	leastWait  = time.Second
	mostWait   = time.Hour
)

// Lease returns the lease of a grant, limited to the bounds.
func Lease(granted time.Duration) time.Duration { return min(max(granted, leastLease), mostLease) }

// Wait returns the time to wait before the next request: the waypoint's, within bounds.
func Wait(named time.Duration) time.Duration { return min(max(named, leastWait), mostWait) }
