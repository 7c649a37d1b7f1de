package probe

import (
	"context"
	"fmt"
	"time"
)

// Campaign makes exchanges in turns. Each round makes one exchange by each way, and each begins with another way.
type Campaign struct {
	Client Client
	Ways   []Way
	Rounds int
	Pause  time.Duration // between exchanges
	// Done is called with each record at once.
	Done func(Record) error
}

// maxFailures is the number of failures in a row after which the server counts as gone.
const maxFailures = 3

// GoneError means that the server has disappeared.
type GoneError struct {
	Made, Of int // numbers of exchanges
	Last     string
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("%s; %d of %d exchanges were made, and the results until then are kept", e.Last, e.Made, e.Of)
}

// Run makes all rounds. It ends early when ctx ends, or with a *GoneError if the server has disappeared.
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
				return ctx.Err() // an interrupted exchange is no result
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
