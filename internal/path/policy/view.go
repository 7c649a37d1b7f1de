package policy

import "time"

// Policy chooses the detours of a connection. It keeps no state. All that it needs is in the View, which it may use
// only during the call.
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
	// StandsBy is the role of a backup: the peer sends data on it only if no other subflow works.
	StandsBy
	// Leaves is the role of a subflow that ends as soon as another works.
	Leaves
)

// Traffic describes what a connection carried.
type Traffic struct {
	Now, Since time.Time // Since: when the connection began
	Bytes      uint64    // in both directions
	// Slow is the time since which the connection moves less than Start.Below of its path.Rule. It is zero if it moves more.
	Slow time.Time
	// Far counts the consecutive samples in which its round trip exceeded Start.AboveRTT of its path.Rule.
	Far int
}

// View is a policy's view of one connection.
type View struct {
	// InUse lists the connection's subflows, established or joining.
	InUse []InUse
	// Usable lists the detours that the connection may take: they reach its server, it does not use them, and they do
	// not rest.
	Usable []Usable
	// Resting lists the detours that are not to be used for now.
	Resting []Resting
	// Traffic describes what the connection has carried until now.
	Traffic Traffic
	// Room is the number of further subflows that the server accepts on the connection. RoomKnown is set if that is
	// known.
	Room      int
	RoomKnown bool
	// Extra is the number of detours that the connection may have beyond those that its policy allows, to try out waypoints.
	Extra int
}

// InUse is one subflow. Its Waypoint is empty for the direct path.
type InUse struct {
	Kind     Kind
	Waypoint string
	Direct   bool
	// Uplink names the interface of this host from which the subflow starts, if it passes no waypoint and the
	// interface is known. Otherwise it is empty.
	Uplink string
	// Up is set on an established subflow. Stuck is set on a subflow over which nothing gets through now, or which is
	// not to be used while another works.
	Up, Stuck bool
	// Standby is set while the subflow is a backup because the policy wants it.
	Standby bool
	// Aside is set on a detour that another should replace: it lost too much, its budget is used up, or it is to be
	// exchanged because its waypoint is loaded or slower. It keeps its place until another detour takes it.
	Aside bool
}

// Usable is one detour that may be taken, and the time at which it was offered.
type Usable struct {
	*Detour
	Since time.Time
	// Unproven is set while it is not known whether the path to the waypoint lets the detour's SYNs through.
	Unproven bool
	// LastResort is set if the detour rests, and only a connection without another detour may take it. Err is the
	// failure after which it rests.
	LastResort bool
	Err        error
	// Failures counts the recent failures of the waypoint's detours towards the server.
	Failures int
	// Wanted is set if the operator wants the waypoint to be taken first.
	Wanted bool
	// Unheard is set while the waypoint's session is down. It offers no further detours then.
	Unheard bool
	Prospect
}

// Prospect estimates what a connection may expect of a detour. Fields are zero if nothing is known.
type Prospect struct {
	// Shunned is the time until which the waypoint is avoided because it lost too much towards the server's network.
	// Zero: it is not avoided. Loss is the share of packets that it lost.
	Shunned time.Time
	Loss    float64
	// Loaded is the time until which the waypoint says that it is loaded. Zero: it is not loaded.
	Loaded time.Time
	// Sparing is set if the month's budget for the waypoint is nearly used up.
	Sparing bool
	// Wait estimates how long a message over the detour waits for its answer. Zero: unknown.
	Wait time.Duration
	// Measured is set if Wait was measured, not guessed.
	Measured bool
	// Goodput is the rate that bulk traffic may expect, in bits of payload a second. It is zero if that is unknown,
	// and for connections whose traffic is not bulk.
	Goodput float64
	// Gave is set if Goodput was measured, not guessed.
	Gave bool
	// Rank orders detours by other members' measurements, the lowest first. It decides only between detours that are
	// otherwise equal, for a connection that explores. For other connections it is 0.
	Rank int
	// Explores is set if the connection explores and the detour was not measured. The connection takes one such
	// detour.
	Explores bool
	// Next is set if the connection has freed a place for the waypoint, to try it out or because it gave more than
	// others.
	Next bool
	// Draw orders detours that are otherwise equal. It is random for each connection and waypoint.
	Draw uint64
	// Border shifts the borders between classes of goodputs and of waits, by a part of a class in [0, 1). It is random for
	// each connection, and the same for all its detours.
	Border float64
}

// Resting is one detour and the reason why it is not used now.
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
	// Capped is set if the connection would take more detours if the server accepted more subflows.
	Capped bool
	// Replace is set if the server accepts no more subflows, and the connection would take another detour in place of
	// one with InUse.Aside.
	Replace bool
	// Delayed is set if subflows are opened later: at the time At if it is set, or else after more traffic.
	Delayed bool
	At      time.Time
	// Ask is set if the waypoints are to be asked for mappings, to be used now or kept in reserve.
	Ask bool
}

// Choice is a detour to take, and the reason for it.
type Choice struct {
	*Detour
	Why Reason
	// Aside is set if the subflow begins set aside, because the detour lost too much.
	Aside bool
	// Standby is set if the subflow begins as a backup.
	Standby bool
}
