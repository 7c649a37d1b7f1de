// Package lease decides who holds what at a waypoint, and until when: mappings, admissions to in-band detours, and
// addresses in tunnels. It also knows the members, and where their sessions come from.
//
// It is told the time and does no I/O. A decision changes the leases at once, and returns the change that the kernel's
// table needs (rules.Change) and the lines that the log gets (attribution.Entry). Not for concurrent use.
package lease
