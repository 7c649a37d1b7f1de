package api

// ReloadRequest makes the agent read its configuration again.
type ReloadRequest struct {
	// DryRun only reports what would change.
	DryRun bool `json:"dry_run,omitempty"`
}

// Reloaded describes what reading the configuration again has changed, or would change.
type Reloaded struct {
	File string `json:"file"`
	// Applied lists the changes that are in effect now; in a dry run, those that would be.
	Applied []SettingChange `json:"applied"`
	// Waiting lists the changes that need a restart of the agent.
	Waiting []SettingChange `json:"waiting"`
}

// SettingChange is a key of the configuration with its value in effect and the one in the file, both in TOML.
type SettingChange struct {
	Key  string `json:"key"`
	From string `json:"from"`
	To   string `json:"to"`
	// NewOnly is set if a reload applies the new value to new connections only.
	NewOnly bool `json:"new_only,omitempty"`
}
