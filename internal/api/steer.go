package api

import "time"

// The values of SteerRequest.Word.
const (
	SteerUse   = "use"   // use these waypoints before all others, instead of those named before
	SteerAvoid = "avoid" // never use these waypoints, nor those named before
	SteerReset = "reset" // these waypoints follow the configuration again; without names, all do
)

// SteerRequest changes which waypoints are used, until the agent ends.
type SteerRequest struct {
	Word      string   `json:"word"`
	Waypoints []string `json:"waypoints,omitempty"`
	// Only excludes all other waypoints, with SteerUse.
	Only bool `json:"only,omitempty"`
	// ForSeconds is the time for which the request is valid. Then what it replaced returns. 0 means until it is replaced.
	ForSeconds float64 `json:"for_s,omitempty"`
}

// Steering holds the operator's wishes about waypoints.
type Steering struct {
	Use   []Steered `json:"use"` // used first
	Only  bool      `json:"only,omitempty"`
	Avoid []Steered `json:"avoid"` // never used
	// Warning says, for people, that all waypoints are avoided, or that none of the only ones that may be used works now, and
	// what to do. Otherwise it is absent.
	Warning string `json:"warning,omitempty"`
}

// Steered is a waypoint that is used first, or never.
type Steered struct {
	Name string `json:"name"`
	// Until is the time at which this ends. It is absent if it holds until it is changed, also if a request with an end repeats it.
	Until time.Time `json:"until,omitzero"`
	// Unknown is set if this host knows no waypoint of this name. The configuration may name one.
	Unknown bool `json:"unknown,omitempty"`
}
