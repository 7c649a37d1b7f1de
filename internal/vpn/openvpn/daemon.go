package openvpn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	firstDelay = time.Second
	lastDelay  = 60 * time.Second
	// steady is the age from which an openvpn resets the delay.
	steady = 30 * time.Second
)

// daemon keeps an openvpn running. One that dies is started again after an increasing delay.
type daemon struct {
	// run runs one openvpn until it ends or ctx does, and returns why it ended. It calls ready once
	// openvpn works.
	run    func(ctx context.Context, ready func()) error
	log    *slog.Logger
	stop   context.CancelFunc
	done   chan struct{}
	closed error // of closing what openvpn used; valid after done

	mu      sync.Mutex
	replace context.CancelFunc // ends the current openvpn, or the wait for the next one
	failure error              // why none works now
}

// startDaemon returns when the first openvpn works. If it does not come to work, it returns why.
// closing is called after the last openvpn has ended.
func startDaemon(ctx context.Context, log *slog.Logger, run func(ctx context.Context, ready func()) error, closing func() error) (*daemon, error) {
	d := &daemon{run: run, log: log, done: make(chan struct{})}
	ctx, d.stop = context.WithCancel(ctx)
	first := make(chan error)
	go func() {
		defer close(d.done)
		d.loop(ctx, first)
		d.stop()
		d.closed = closing()
	}()
	if err := <-first; err != nil {
		return nil, errors.Join(err, d.end())
	}
	return d, nil
}

func (d *daemon) loop(ctx context.Context, first chan<- error) {
	var begun bool
	var delay time.Duration
	for ctx.Err() == nil || !begun {
		attempt, cancel := context.WithCancel(ctx)
		d.set(func() { d.replace = cancel })
		started := time.Now()
		err := d.run(attempt, func() {
			d.set(func() { d.failure = nil })
			if !begun {
				begun = true
				first <- nil
			}
		})
		if !begun {
			cancel()
			first <- err
			return
		}
		if attempt.Err() == nil {
			delay = nextDelay(delay, time.Since(started))
			d.log.Warn("openvpn does not run and is started again", "in", delay, "error", err)
			d.set(func() { d.failure = fmt.Errorf("%w (next try in %v)", err, delay) })
			select {
			case <-time.After(delay):
			case <-attempt.Done():
			}
		}
		cancel()
	}
}

func (d *daemon) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// nextDelay returns the time to wait after an openvpn that lived for some time has ended.
func nextDelay(last, lived time.Duration) time.Duration {
	if last == 0 || lived >= steady {
		return firstDelay
	}
	return min(2*last, lastDelay)
}

// restart replaces the openvpn at once.
func (d *daemon) restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replace()
}

// problem returns why no openvpn runs now, or nil if one does.
func (d *daemon) problem() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// end stops openvpn, waits for its end, and returns the error of closing what it used.
func (d *daemon) end() error {
	d.stop()
	<-d.done
	return d.closed
}
