package api

// WaypointState is the state of the session with one address of a waypoint.
type WaypointState string

// The states of a Waypoint.
const (
	WaypointUp     WaypointState = "up"
	WaypointClosed WaypointState = "closed" // the session is up, and the waypoint is closed for now
	WaypointDown   WaypointState = "down"
	WaypointMoving WaypointState = "moving" // this host's address has changed, and the session follows
)

// KindState is the state of one kind of detour at one address of a waypoint.
type KindState string

// The states of a WaypointKind.
const (
	KindReady      KindState = "ready"
	KindResting    KindState = "resting" // after a failure
	KindDown       KindState = "down"
	KindClosed     KindState = "closed" // the waypoint is closed
	KindNotOffered KindState = "not-offered"
	KindUnusable   KindState = "unusable" // this host lacks a requirement, or the address is of the wrong family
)

// SubflowState is the state of a subflow.
type SubflowState string

// The states of a Subflow.
const (
	SubflowUp      SubflowState = "up"
	SubflowBackup  SubflowState = "backup"
	SubflowJoining SubflowState = "joining"
	// SubflowSilent is the state of a direct subflow over which nothing comes, though others are busy.
	SubflowSilent SubflowState = "silent"
)

// DirectWord is the state of the direct path as a word.
type DirectWord string

// The states of DirectPath.
const (
	DirectUp   DirectWord = "up"
	DirectLost DirectWord = "lost"
)

// TrafficBulk is the Traffic of a connection that uses all the available bandwidth.
const TrafficBulk = "bulk"

// TrafficShort is the Traffic of a connection that has carried too little to be classified.
const TrafficShort = "short"

// ClosedCause is the reason why a waypoint gives nothing for now.
type ClosedCause string

// The causes of Given.Closed.
const (
	SwitchedOff  ClosedCause = "switched-off"
	QuotaTraffic ClosedCause = "quota-traffic"
	OutsideHours ClosedCause = "outside-hours"
)

// Reachability describes whether others can reach a UDP port of this host.
type Reachability string

// The values of Outside.Leaves.
const (
	Reachable   Reachability = "reachable"    // anybody gets in
	Punchable   Reachability = "punchable"    // hole punching gets in
	Unreachable Reachability = "unreachable"  // nobody gets in
	OutwardOnly Reachability = "outward-only" // nobody answers over UDP
	NotKnownYet Reachability = "not-known"
)
