package path

import "time"

// Policy decides which detours a connection's subflows take. It keeps no state:
// all it needs is in the View, which is its only during the call.
type Policy interface {
	Plan(View) Plan
}

// View is what a policy knows of one connection.
type View struct {
	// InUse are the connection's subflows, up or on their way up.
	InUse []InUse
	// Usable are the detours that lead to the connection's server, are not in
	// use by it and not left alone.
	Usable []Usable
	// Resting are those that are left alone for now.
	Resting []Resting
	// Room is how many more subflows the server takes of the connection, where that is
	// known.
	Room      int
	RoomKnown bool
}

// InUse is one subflow. Its Waypoint is empty for the direct path.
type InUse struct {
	Kind     Kind
	Waypoint string
	Direct   bool
}

// Usable is one detour and when it was first offered.
type Usable struct {
	*Detour
	Since time.Time
	// Unproven: whether the path lets it through is not known yet.
	Unproven bool
}

// Resting is one detour and why it is left alone.
type Resting struct {
	Kind     Kind
	Waypoint string
	Rest     Rest
}

// Plan is a policy's answer.
type Plan struct {
	// Open are detours to take now.
	Open []Choice
	// Short: the connection would take another detour if there were one.
	Short bool
	// Capped: it would take more if the server did.
	Capped bool
	// Ask: the waypoints are to be asked for mappings, to use or to have at hand.
	Ask bool
}

// Choice is a detour to take and why.
type Choice struct {
	*Detour
	Why Reason
}
