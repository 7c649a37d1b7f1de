// Package lease manages the leases at a waypoint: mappings, admissions to in-band detours, and addresses in tunnels. It also
// records the members, and the addresses of their sessions.
//
// It gets the time as a parameter and does no I/O. A decision changes the leases at once, and returns the change of the
// kernel's table (rules.Change) and the lines for the log (attribution.Entry). It is not safe for concurrent use.
package lease
