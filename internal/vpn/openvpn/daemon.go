package openvpn

import (
	"context"
	"log/slog"
	"time"
)

const (
	// killTime is how long an openvpn may take to end after a signal.
	killTime   = 5 * time.Second
	firstDelay = time.Second
	lastDelay  = 60 * time.Second
	// steady is how long an openvpn must have run to reset the backoff.
	steady = 30 * time.Second
)

// child is a running openvpn.
type child interface {
	terminate()
	kill()
	ended() <-chan struct{}
	err() error // why it ended, once it has; never nil
}

// daemon keeps an openvpn running. One that dies is started again after an increasing delay.
type daemon struct {
	launch func(context.Context) (child, error)
	// down is called when openvpn has ended, with the delay before the next start.
	down func(err error, retry time.Duration)
	log  *slog.Logger

	replace chan struct{}
}

func newDaemon(launch func(context.Context) (child, error), down func(error, time.Duration), log *slog.Logger) *daemon {
	return &daemon{launch: launch, down: down, log: log, replace: make(chan struct{}, 1)}
}

// restart replaces the openvpn at once.
func (d *daemon) restart() {
	select {
	case d.replace <- struct{}{}:
	default: // not seen to yet
	}
}

// run watches the first openvpn and its successors until ctx ends, and then stops the current one.
func (d *daemon) run(ctx context.Context, c child) {
	var wait backoff
	for {
		started := time.Now()
		err := d.attend(ctx, c)
		for c = nil; c == nil; {
			if err != nil {
				delay := wait.next(time.Since(started))
				d.log.Warn("openvpn does not run and is started again", "in", delay, "error", err)
				d.down(err, delay)
				d.sleep(ctx, delay)
			}
			if ctx.Err() != nil {
				return
			}
			started = time.Now()
			c, err = d.launch(ctx)
		}
	}
}

// attend waits until c has ended, and returns why unless it was asked to end.
func (d *daemon) attend(ctx context.Context, c child) error {
	select {
	case <-c.ended():
		return c.err()
	case <-ctx.Done():
	case <-d.replace:
	}
	end(c)
	return nil
}

func end(c child) {
	c.terminate()
	patience := time.NewTimer(killTime)
	defer patience.Stop()
	select {
	case <-c.ended():
		return
	case <-patience.C:
	}
	c.kill()
	<-c.ended()
}

func (d *daemon) sleep(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.replace:
	case <-ctx.Done():
	}
}

// backoff computes the delay before openvpn is started again.
type backoff struct{ last time.Duration }

func (b *backoff) next(lived time.Duration) time.Duration {
	switch {
	case lived >= steady || b.last == 0:
		b.last = firstDelay
	default:
		b.last = min(2*b.last, lastDelay)
	}
	return b.last
}
