package api

// LogLevelRequest changes which messages the agent logs, until it ends. An empty request changes nothing.
type LogLevelRequest struct {
	// All is the level of all subsystems: debug, info, warn or error.
	All string `json:"all,omitempty"`
	// Subsystems are levels of single subsystems, set after All.
	Subsystems map[string]string `json:"subsystems,omitempty"`
}

// LogLevels lists the levels of messages that the agent logs.
type LogLevels struct {
	All        string            `json:"all"`
	Subsystems map[string]string `json:"subsystems"` // all that log
}
