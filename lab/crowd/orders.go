package crowd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// What can be ordered, of the hub and of the members.
const (
	Invite  = "invite"  // hub: Count invitations; Invited
	Expel   = "expel"   // hub: Name; Expelled
	Look    = "look"    // hub: HubState; members: Head of the directory, MembersState
	Settle  = "settle"  // both: give back memory that is free; Memory
	Profile = "profile" // hub: from now on to File, or to none; nothing

	Join    = "join"    // members: one of them with each of Lines; Work
	Connect = "connect" // members: all that are not; Work
	Publish = "publish" // members: Count of them, one after the other; a Spread of each
	Heard   = "heard"   // members: of the expulsion of Name, Began with roots and lists of Hash; Reached
	Renew   = "renew"   // members: Count of them; Work
)

// Order is one line of orders.
type Order struct {
	Do    string
	Count int       `json:",omitempty"`
	Lines []string  `json:",omitempty"`
	Stay  bool      `json:",omitempty"` // on the bus, after a join
	Name  string    `json:",omitempty"`
	File  string    `json:",omitempty"`
	Hash  string    `json:",omitempty"`
	Began time.Time `json:",omitzero"`
	Head  uint64    `json:",omitempty"`
}

// Ready is the first message of each process, in the form of an answer.
type Ready struct {
	Members int // that may be connected at once, by the limit of open files
}

// Invited are join lines.
type Invited struct{ Lines []string }

// Expelled is the coordinator's result of an expulsion.
type Expelled struct {
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
	Behind    int    // connected, and behind Head
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

// reply is one line of answers.
type reply struct {
	Error  string          `json:",omitempty"`
	Result json.RawMessage `json:",omitempty"`
}

// obey answers orders until there are no more.
func obey(ctx context.Context, in io.Reader, out io.Writer, ready Ready, do func(context.Context, Order) (any, error)) error {
	lines, answers := json.NewDecoder(in), json.NewEncoder(out)
	result, err := any(ready), error(nil)
	for {
		var r reply
		if err == nil {
			r.Result, err = json.Marshal(result)
		}
		if err != nil {
			r = reply{Error: err.Error()}
		}
		if err := answers.Encode(r); err != nil {
			return fmt.Errorf("answer an order: %w", err)
		}
		var o Order
		switch err := lines.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read an order: %w", err)
		}
		result, err = do(ctx, o)
	}
}

// Remote gives orders to one of the processes.
type Remote struct {
	lines   *json.Encoder
	answers *json.Decoder
}

// NewRemote waits until a process, by its standard input and output, is ready.
func NewRemote(in io.Writer, out io.Reader) (*Remote, Ready, error) {
	r := &Remote{json.NewEncoder(in), json.NewDecoder(out)}
	var ready Ready
	err := r.read("start", &ready)
	return r, ready, err
}

// Do sends an order and waits for its result. result may be nil.
func (r *Remote) Do(o Order, result any) error {
	if err := r.lines.Encode(o); err != nil {
		return fmt.Errorf("order %s: %w", o.Do, err)
	}
	return r.read(o.Do, result)
}

func (r *Remote) read(what string, result any) error {
	var a reply
	err := r.answers.Decode(&a)
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err == nil && result != nil {
		err = json.Unmarshal(a.Result, result)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
