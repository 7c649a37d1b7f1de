// Package loop has what the coordinator's loops share.
package loop

import (
	"context"
	"time"
)

// Wake wakes the loop that waits for c, or that will. C must have room for one value.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wait waits for d, or until woken has a value, and reports whether to go on: false when ctx has ended.
func Wait(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
