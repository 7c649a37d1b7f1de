package api

// WebRequest asks the agent for its page.
type WebRequest struct {
	// Stop ends the page and all its sessions.
	Stop bool `json:"stop,omitempty"`
}

// Web has the page's address. It begins a session once, within a few minutes. It is empty after Stop.
type Web struct {
	URL string `json:"url,omitempty"`
}

// LogRequest asks a waypoint for a part of its attribution log. All fields are optional.
type LogRequest struct {
	Member string `json:"member,omitempty"`
	Server string `json:"server,omitempty"` // an address, or an address and a port
	Since  string `json:"since,omitempty"`  // RFC 3339
}
