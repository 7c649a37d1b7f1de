package crowd

import "time"

// The arguments and results of Hub's and Members' methods, which the benchmark calls from another process.

// Joining is what Members.Join takes.
type Joining struct {
	Lines []string // invitations, one for each new member
	Stay  bool     // on the bus
}

// Expelled is the coordinator's result of an expulsion.
type Expelled struct {
	Name   string
	Began  time.Time
	Millis float64 // until the coordinator had sent it to everybody
	Hash   string  // of the roots and lists with the expulsion
}

// HubState describes the coordinator.
type HubState struct {
	Members  int    // with a record
	Revision uint64 // of the directory
	Bytes    int    // of signed records
	Busy     uint64 // messages that it could not take
}

// Memory is the runtime's memory for heap and stacks, in bytes.
type Memory struct{ Heap int64 }

// Work is the result of an operation by many members.
type Work struct {
	Seconds float64
	Millis  []float64 // of each
	Failed  int
	Why     string // the last failure
}

// Spread describes how long after a change members received it.
type Spread struct {
	Heard, Missed   int     // members
	First, P99, Max float64 // ms, of those that received it
}

// Reached describes the effect of an expulsion on the members.
type Reached struct {
	Spread
	Verified float64 // ms until the last of the sample had verified and taken it
	Cut      float64 // ms until the member expelled had lost its connection
	Refusal  string  // what its renewal was answered with
}

// MembersState describes the members.
type MembersState struct {
	Connected int
	Connects  uint64 // made so far, all together
	Retries   uint64 // of questions that were not answered at once
	Behind    int    // connected, and behind the directory's head
	Gaps      uint64 // times that a change was missing when the next came
	Dropped   uint64 // messages that came too fast
	Changes   uint64 // received, by all members together
	Copies    []Copy // of the sample
}

// Copy describes one member's copy of the directory.
type Copy struct {
	Members  int
	Revision uint64
	Behind   bool
	Refused  int
}
