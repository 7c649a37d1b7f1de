package probe

import (
	"context"
	"fmt"
	"time"
)

// Campaign makes exchanges in turns: each round makes one by each way, beginning with another way each time.
type Campaign struct {
	Client Client
	Ways   []Way
	Rounds int
	Pause  time.Duration // between exchanges
	// Done takes each record as soon as it is made.
	Done func(Record) error
}

// maxFailures is the number of failures in a row that end a run: the server is gone.
const maxFailures = 3

// GoneError is the error of a server that has vanished.
type GoneError struct {
	Made, Of int // exchanges
	Last     string
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("%s; %d of %d exchanges were made, and the results until then are kept", e.Last, e.Made, e.Of)
}

// Run makes all rounds. It ends with ctx, or with a *GoneError when the server has vanished.
func (c *Campaign) Run(ctx context.Context) error {
	failures, made := 0, 0
	for i := range c.Rounds {
		for j := range c.Ways {
			if i+j > 0 {
				if err := pause(ctx, c.Pause); err != nil {
					return err
				}
			}
			r := c.Client.Exchange(ctx, c.Ways[(i+j)%len(c.Ways)])
			if ctx.Err() != nil {
				return ctx.Err() // what was cut short is no result
			}
			if err := c.Done(r); err != nil {
				return err
			}
			made++
			if r.Error == "" {
				failures = 0
				continue
			}
			if failures++; failures == maxFailures {
				return &GoneError{made - failures, c.Rounds * len(c.Ways), r.Error}
			}
		}
	}
	return nil
}
