package directory

import (
	"encoding/json"
	"fmt"

	"github.com/detour-collective/dcol/internal/collective"
)

// MaxMeasured bounds Record.Measured.
const MaxMeasured = 8

// Measurement summarises a member's recent measurements of a waypoint, over several networks of servers. Loss and
// Goodput are classes of path/claim, or 0 if not measured. Later versions may add classes.
type Measurement struct {
	Waypoint string `json:"of"`
	Loss     uint8  `json:"loss,omitempty"`
	Goodput  uint8  `json:"goodput,omitempty"`
}

func checkMeasured(all []Measurement) error {
	if len(all) > MaxMeasured {
		return fmt.Errorf("%d waypoints were measured, but at most %d are allowed", len(all), MaxMeasured)
	}
	for i, m := range all {
		if err := collective.CheckName(m.Waypoint); err != nil {
			return fmt.Errorf("what was measured: %w", err)
		}
		for _, before := range all[:i] {
			if before.Waypoint == m.Waypoint {
				return fmt.Errorf("%s was measured twice", m.Waypoint)
			}
		}
	}
	return nil
}

// WithMeasured returns the record with the first of these measurements, as many as a record can hold.
func (r Record) WithMeasured(all []Measurement) Record {
	r.Measured = nil
	base, err := json.Marshal(r)
	if err != nil {
		return r // Sign returns the error
	}
	for n := min(len(all), MaxMeasured); n > 0; n-- {
		const key = len(`,"measured":`)
		if list, err := json.Marshal(all[:n]); err == nil && len(base)+key+len(list) <= MaxPayload {
			r.Measured = all[:n]
			return r
		}
	}
	return r
}
