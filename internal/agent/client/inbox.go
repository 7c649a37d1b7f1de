package client

import (
	"context"
	"sync"
	"time"
)

// inbox brings what happens outside of the loop into it: waypoints' answers, users' requests, and the results of work that
// had to wait. Each is a function that the loop runs, and to which it tells the time.
type inbox struct {
	calls   chan func(now time.Time)
	working sync.WaitGroup // inBackground
}

// newInbox returns an inbox in which this many functions may wait for the loop.
func newInbox(room int) *inbox { return &inbox{calls: make(chan func(time.Time), room)} }

// post hands f to the loop.
func (b *inbox) post(ctx context.Context, f func(now time.Time)) {
	select {
	case b.calls <- f:
	case <-ctx.Done():
	}
}

// inBackground runs work, which may wait, beside the loop. The function that work returns then runs in the loop.
func (b *inbox) inBackground(ctx context.Context, work func() (then func(now time.Time))) {
	b.working.Go(func() { b.post(ctx, work()) })
}

// wait returns when no work runs in the background.
func (b *inbox) wait() { b.working.Wait() }

// call runs f in the loop and returns its answer.
func call[T any](ctx context.Context, b *inbox, f func(now time.Time) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	done := make(chan answer, 1)
	select {
	case b.calls <- func(now time.Time) { v, err := f(now); done <- answer{v, err} }:
	case <-ctx.Done():
		return *new(T), ctx.Err()
	}
	select {
	case a := <-done:
		return a.v, a.err
	case <-ctx.Done():
		return *new(T), ctx.Err()
	}
}
