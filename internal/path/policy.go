package path

import "time"

// Policy chooses the detours of a connection. It keeps no state: everything it needs is in the
// View, which it may use only during the call.
type Policy interface {
	Plan(View) Plan
}

// Layout is a Policy that also decides how a connection's subflows are used.
type Layout interface {
	Policy
	// Arrange returns a role for each element of View.InUse.
	Arrange(View) []Role
}

// Role is the use of a subflow.
type Role uint8

const (
	// Carries is the role of a subflow that carries data.
	Carries Role = iota
	// StandsBy is the role of a backup: it carries data if no other subflow works.
	StandsBy
	// Leaves is the role of a subflow that ends as soon as another works.
	Leaves
)

// Traffic counts what a connection carried.
type Traffic struct {
	Now, Since time.Time // when it began
	Bytes      uint64    // in both directions
	// Slow is the time since which it moved data at a rate below the one that its Rule wants; zero: it does not.
	Slow time.Time
	// Far counts the samples one after the other in which its round trip exceeded the one that its Rule wants.
	Far int
}

// View is a policy's view of one connection.
type View struct {
	// InUse lists the connection's subflows, established or joining.
	InUse []InUse
	// Usable lists the detours that reach the connection's server, are not in use by it and not
	// resting.
	Usable []Usable
	// Resting lists the detours that are not to be used for now.
	Resting []Resting
	// Traffic is what the connection carried until now.
	Traffic Traffic
	// Room is how many more subflows the server accepts on the connection, if known.
	Room      int
	RoomKnown bool
}

// InUse is one subflow. Its Waypoint is empty for the direct path.
type InUse struct {
	Kind     Kind
	Waypoint string
	Direct   bool
	// Uplink names the interface of this host from which a subflow starts that passes no waypoint. It is empty if
	// that is not known.
	Uplink string
	// Up is set on an established subflow, Stuck on one over which nothing gets through now, or that is not to
	// be used while another works.
	Up, Stuck bool
	// Standby is set while the subflow is a backup because the policy wants it.
	Standby bool
	// Aside is set on a detour that does not carry data for now, because it lost too much or its budget is used up, or
	// that is to be exchanged because its waypoint is loaded. It keeps its place until another detour takes it.
	Aside bool
}

// Usable is one detour and the time since which it is on offer.
type Usable struct {
	*Detour
	Since time.Time
	// Unproven is set while it is not known whether the path lets the detour's SYNs through.
	Unproven bool
	// LastResort is set if the detour rests, and may be taken only by a connection that has no other.
	LastResort bool
	// Failures counts the recent failures of the waypoint's detours towards the server.
	Failures int
	// Wanted is set if the operator wants the waypoint to be taken before others.
	Wanted bool
	Prospect
}

// Prospect estimates a detour for a connection. It is zero if nothing is known, or not asked.
type Prospect struct {
	// Shunned is set if the waypoint lost too much of what went to the server's network lately.
	Shunned time.Time
	Loss    float64
	// Loaded is set if the waypoint says that it is loaded until then.
	Loaded time.Time
	// Sparing is set if the month's budget for the waypoint is nearly used up.
	Sparing bool
	// Wait is about how long a message over it waits for its answer. Zero: unknown.
	Wait time.Duration
	// Measured is set if Wait was measured, not guessed.
	Measured bool
	// Goodput is the rate that bulk traffic may expect of it, in bits of payload a second. It is zero for a connection whose
	// traffic is not bulk, and if nothing is known.
	Goodput float64
	// Gave is set if Goodput was measured, not guessed.
	Gave bool
	// Rank orders detours that are as good as each other for a connection that explores, by what other members measured.
	// It is 0 for all others.
	Rank int
	// Explores is set if the connection explores and the detour was not measured. It takes one of those.
	Explores bool
	// Next is set if the connection gave a place to the waypoint, to try it or because it gave more than others.
	Next bool
	// Draw orders detours that are as good as each other, differently for each connection.
	Draw uint64
}

// Resting is one detour and the reason for not using it.
type Resting struct {
	Kind     Kind
	Waypoint string
	Rest     Rest
}

// Plan is a policy's answer.
type Plan struct {
	// Open lists the detours to take now.
	Open []Choice
	// Short is set if the connection would take another detour if there were one.
	Short bool
	// Capped is set if the connection would take more if the server accepted more.
	Capped bool
	// Replace is set if the connection would take another detour in place of one that is set aside, and the
	// server accepts no more.
	Replace bool
	// Delayed is set if subflows are opened later: at the time At, if that is set, or after more traffic.
	Delayed bool
	At      time.Time
	// Ask is set if the waypoints are to be asked for mappings, for use now or later.
	Ask bool
}

// Choice is a detour to take and the reason.
type Choice struct {
	*Detour
	Why Reason
	// Aside has the subflow begin as one that is set aside.
	Aside bool
	// Standby has the subflow begin as a backup.
	Standby bool
}
