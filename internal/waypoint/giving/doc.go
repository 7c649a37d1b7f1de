// Package giving decides when a waypoint is open: in the hours that its operator allows, until the
// month's quota is used up, and not while it is switched off. It also decides whether the waypoint is
// loaded. It does no I/O: the caller passes the bytes used, and the time in the operator's time zone.
package giving
