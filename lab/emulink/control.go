package emulink

// The emulator reads requests as JSON values on stdin, one per line. It answers each with a response on
// stdout. It exits when stdin ends.

// request has one of its fields set.
type request struct {
	Start *startRequest `json:"start,omitempty"` // the first request, and only that
	Set   *setRequest   `json:"set,omitempty"`
	Down  *downRequest  `json:"down,omitempty"`
	Stats *int          `json:"stats,omitempty"` // of this link
	Reset bool          `json:"reset,omitempty"`
}

type startRequest struct {
	Seed  uint64      `json:"seed"`
	Links []linkSetup `json:"links"`
}

// linkSetup is a link whose devices A and B are the next two inherited files.
type linkSetup struct {
	AtoB Params `json:"a_to_b"`
	BtoA Params `json:"b_to_a"`
	MTU  int    `json:"mtu"`
}

type setRequest struct {
	Link int    `json:"link"`
	AtoB Params `json:"a_to_b"`
	BtoA Params `json:"b_to_a"`
}

type downRequest struct {
	Link int  `json:"link"`
	Down bool `json:"down"`
}

// response has Error or the requested values.
type response struct {
	Error      string `json:"error,omitempty"`
	Scheduling string `json:"scheduling,omitempty"` // to start
	AtoB       Stats  `json:"a_to_b,omitzero"`      // to stats
	BtoA       Stats  `json:"b_to_a,omitzero"`
}
