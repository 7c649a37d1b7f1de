package detour

import "time"

// Waypoints say how long what they grant lasts, and when to ask again. Neither
// may have a client ask all the time, or never again.
const (
	// The bounds of a lease are those that a waypoint's own configuration has for
	// it (mapping_lifetime).
	leastLease = 10 * time.Second
	mostLease  = 24 * time.Hour
	leastWait  = time.Second
	mostWait   = time.Hour
)

// Lease returns the lease of a grant, within bounds.
func Lease(granted time.Duration) time.Duration { return min(max(granted, leastLease), mostLease) }

// Wait returns how long not to ask again, within bounds, where a waypoint named a time.
func Wait(named time.Duration) time.Duration { return min(max(named, leastWait), mostWait) }
