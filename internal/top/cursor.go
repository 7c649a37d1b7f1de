package top

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/api"
)

// cursor identifies the chosen row. It follows its connection or waypoint when that moves to another place.
type cursor struct {
	onWaypoints bool
	set         bool // a row of connections is chosen
	id          rowID
	at          int // its place in the list
	waypoint    waypointID
	waypointAt  int
}

type waypointID struct {
	name string
	addr netip.AddrPort
}

func idOf(w *api.Waypoint) waypointID { return waypointID{w.Name, w.Addr} }

// settle finds the chosen rows again. If one has ended, the row at its place is chosen.
func (c *cursor) settle(rows []row, waypoints []api.Waypoint) {
	if c.set {
		if at := slices.IndexFunc(rows, func(r row) bool { return r.id == c.id }); at >= 0 {
			c.at = at
		} else {
			c.put(min(c.at, len(rows)-1), rows)
		}
	}
	if c.onWaypoints {
		if at := slices.IndexFunc(waypoints, func(w api.Waypoint) bool { return idOf(&w) == c.waypoint }); at >= 0 {
			c.waypointAt = at
		} else {
			c.putWaypoint(min(c.waypointAt, len(waypoints)-1), waypoints)
		}
	}
}

func (c *cursor) put(at int, rows []row) {
	if at < 0 || len(rows) == 0 {
		c.set, c.at, c.id = false, 0, rowID{}
		return
	}
	at = min(at, len(rows)-1)
	c.set, c.at, c.id = true, at, rows[at].id
}

func (c *cursor) putWaypoint(at int, waypoints []api.Waypoint) {
	if at < 0 || len(waypoints) == 0 {
		c.onWaypoints, c.waypointAt, c.waypoint = false, 0, waypointID{}
		return
	}
	at = min(at, len(waypoints)-1)
	c.waypointAt, c.waypoint = at, idOf(&waypoints[at])
}

// move moves the cursor by a number of rows, up if by is negative. The first move puts it on the first row.
func (c *cursor) move(by int, rows []row, waypoints []api.Waypoint) {
	switch {
	case c.onWaypoints:
		c.putWaypoint(max(c.waypointAt+by, 0), waypoints)
	case !c.set:
		c.put(0, rows)
	default:
		c.put(max(c.at+by, 0), rows)
	}
}

// turn moves the cursor to the other table.
func (c *cursor) turn(rows []row, waypoints []api.Waypoint) {
	if c.onWaypoints {
		c.onWaypoints = false
		if !c.set {
			c.put(0, rows)
		}
		return
	}
	if len(waypoints) > 0 {
		c.onWaypoints = true
		c.putWaypoint(c.waypointAt, waypoints)
	}
}

// row returns the chosen row of connections, or nil.
func (c *cursor) row(rows []row) *row {
	if !c.set || c.at >= len(rows) {
		return nil
	}
	return &rows[c.at]
}
