// Package budget counts the payload that a client sends and receives through waypoints in each month, and holds it
// against the operator's limits. It is told the time, in the zone that months are meant in, and does no I/O. Package
// path decides what follows.
package budget
