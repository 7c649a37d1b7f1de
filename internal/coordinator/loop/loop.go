// Package loop has the two functions that the coordinator's loops share: to wake one, and to wait in one.
package loop

import (
	"context"
	"time"
)

// Wake wakes the loop that waits for c, now or when it waits next. c must have room for one value.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wait waits for d, or until woken has a value. It reports false if ctx has ended.
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
