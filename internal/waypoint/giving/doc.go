// Package giving decides when a member gives as a waypoint: at the hours its operator allows, until
// the month's quota is used up, and not while it is switched off. It is told the time, in the zone
// that hours and months are meant in, and what was used; it does no I/O.
package giving
