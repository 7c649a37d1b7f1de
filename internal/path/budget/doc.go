// Package budget counts the payload that a client sends and receives through waypoints in each month, and compares it
// with the operator's limits. The caller passes the time, in the time zone in which months count. The package does no
// I/O. Package path decides what follows from a limit.
package budget
