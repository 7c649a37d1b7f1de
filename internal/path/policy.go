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
	// use by it and not waiting after a failure.
	Usable []Usable
}

// InUse is one subflow. Its Waypoint is empty for the direct path.
type InUse struct {
	Kind     Kind
	Waypoint string
	Direct   bool
}

// Usable is one detour and when it was first offered.
type Usable struct {
	Detour
	Since time.Time
}

// Plan is a policy's answer.
type Plan struct {
	// Open are detours to take now.
	Open []Detour
	// Short: the connection would take another detour if there were one.
	Short bool
}
