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

// Ready is what each process says first, as if it had been asked.
type Ready struct {
	Members int // that it may have connected at once, by its limit of open files
}

// Invited are join lines.
type Invited struct{ Lines []string }

// Expelled is how an expulsion went for the coordinator.
type Expelled struct {
	Began  time.Time
	Millis float64 // until the coordinator had told everybody
	Hash   string  // of the roots and lists that say so
}

// HubState is how the coordinator is.
type HubState struct {
	Members  int    // with a record
	Revision uint64 // of the directory
	Bytes    int    // of signed records
	Busy     uint64 // messages that it could not take
}

// Memory is what the runtime uses for heap and stacks, in bytes.
type Memory struct{ Heap int64 }

// Work is what came of something that many members did, some at a time.
type Work struct {
	Seconds float64
	Millis  []float64 // of each
	Failed  int
	Why     string // the last failure
}

// Spread is when members heard of one change, since it began.
type Spread struct {
	Heard, Missed   int     // members
	First, P99, Max float64 // ms, of those who heard
}

// Reached is what became of an expulsion.
type Reached struct {
	Spread
	Verified float64 // ms until the last of the sample had verified and taken it
	Cut      float64 // ms until the member expelled had lost its connection
	Refusal  string  // what its renewal was answered with
}

// MembersState is how the members are.
type MembersState struct {
	Connected int
	Connects  uint64 // made so far, all together
	Retries   uint64 // of questions that were not answered at once
	Behind    int    // connected, and not told all up to Head
	Gaps      uint64 // times that a change was missing when the next came
	Dropped   uint64 // messages that came too fast
	Changes   uint64 // told, to all members together
	Copies    []Copy // of the sample
}

// Copy is how one member's copy of the directory is.
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

// Do gives an order and waits for what came of it; result may be nil.
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
