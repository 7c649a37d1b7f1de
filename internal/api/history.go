package api

import "time"

// HistorySchema is the version of History.
const HistorySchema = "dcol.history/1"

// HistoryStep is the length of a period.
type HistoryStep string

// The steps of a History. Hours, days and months begin in the agent's time zone.
const (
	StepMinute HistoryStep = "minute"
	StepHour   HistoryStep = "hour"
	StepDay    HistoryStep = "day"
	StepMonth  HistoryStep = "month"
)

// HistoryRequest asks for what happened from Since until Until. The minute, or for other steps the hour, that contains
// Since is included from its beginning.
type HistoryRequest struct {
	Step  HistoryStep `json:"step"`
	Since time.Time   `json:"since,omitzero"` // absent: from the earliest period
	Until time.Time   `json:"until,omitzero"` // absent: now
}

// History describes what paths carried, and what detours gained.
type History struct {
	Schema string      `json:"schema"`
	Step   HistoryStep `json:"step"`
	// Problem is the reason why the history is not written now. It is empty if it is written.
	Problem string   `json:"problem,omitempty"`
	Periods []Period `json:"periods"` // earliest first; periods without an agent are missing
	Total   Period   `json:"total"`   // of all Periods
}

// Period describes a minute, an hour, a day or a month.
type Period struct {
	Start    time.Time  `json:"start"`
	Observed float64    `json:"observed_s"` // how long the agent ran in this period
	Paths    []PathUsed `json:"paths"`
	Gained   Gained     `json:"gained"`
}

// PathUsed describes what a kind of path through one waypoint carried for this host, in bytes of payload.
type PathUsed struct {
	Kind     string `json:"kind"` // direct, wireguard, openvpn, in-band, mapped, others
	Waypoint string `json:"waypoint,omitempty"`
	Received uint64 `json:"received"`
	Sent     uint64 `json:"sent"`
	// RTT is the mean round trip of its subflows in milliseconds, over Samples observations in which it had just been
	// measured. It is 0 if there were none.
	RTT     float64 `json:"rtt_ms"`
	Samples uint64  `json:"samples"`
}

// Gained compares what connections had with what the direct path alone would have given. Times are in seconds.
type Gained struct {
	DetourBytes uint64 `json:"detour_bytes"` // payload, in both directions
	// Stalls counts how often a transfer continued over detours while its direct path carried nothing. StallTime is how
	// long that lasted altogether.
	Stalls    uint64  `json:"stalls"`
	StallTime float64 `json:"stall_s"`
	// Saved estimates how much longer bulk transfers would have taken on the direct path alone. It covers transfers whose
	// direct path's own rate is known. For all transfers together, the true value should be between SavedLow and SavedHigh.
	// SavedUnknown is the part of SavedHigh that belongs to transfers without an estimate.
	Saved        float64 `json:"saved_s"`
	SavedLow     float64 `json:"saved_low_s"`
	SavedHigh    float64 `json:"saved_high_s"`
	SavedUnknown float64 `json:"saved_unknown_s,omitempty"`
}
