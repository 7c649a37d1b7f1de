package api

import "time"

// Words of a SteerRequest.
const (
	SteerUse   = "use"   // take these waypoints before all others, in place of earlier ones
	SteerAvoid = "avoid" // never take these waypoints, besides earlier ones
	SteerReset = "reset" // do what the configuration says
)

// SteerRequest changes which waypoints are taken, until the agent ends.
type SteerRequest struct {
	Word      string   `json:"word"`
	Waypoints []string `json:"waypoints,omitempty"`
	// Only has no other waypoint taken; with SteerUse.
	Only bool `json:"only,omitempty"`
	// ForSeconds is the time for which it holds; 0: until it is changed.
	ForSeconds float64 `json:"for_s,omitempty"`
}

// Steering is the operator's will about waypoints.
type Steering struct {
	Use   []Steered `json:"use"` // taken first
	Only  bool      `json:"only,omitempty"`
	Avoid []Steered `json:"avoid"` // never taken
}

// Steered is a waypoint that is taken first, or never.
type Steered struct {
	Name  string    `json:"name"`
	Until time.Time `json:"until,omitzero"` // absent: until it is changed
}
