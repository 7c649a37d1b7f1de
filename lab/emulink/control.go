package emulink

// The wire is told what to do by JSON values on its stdin, one a line, and
// answers each with one on its stdout. It ends when its stdin does.

// request is one of its fields.
type request struct {
	Start *startRequest `json:"start,omitempty"` // the first, and only that
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

// response has Error, or what was asked for.
type response struct {
	Error      string `json:"error,omitempty"`
	Scheduling string `json:"scheduling,omitempty"` // to start
	AtoB       Stats  `json:"a_to_b,omitzero"`      // to stats
	BtoA       Stats  `json:"b_to_a,omitzero"`
}
