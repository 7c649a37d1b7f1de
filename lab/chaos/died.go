package chaos

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
)

// died collects what dcol's own processes did wrong: one ended though nothing had
// struck it, hung, or did not do what it was started for. These are findings. A
// sequence is repeated only for errors of the lab itself.
type died struct {
	mu    sync.Mutex
	found []string
}

// errDied ends a sequence that cannot go on because dcol failed: died says how.
var errDied = errors.New("dcol failed")

func (d *died) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found = append(d.found, fmt.Sprintf(format, args...))
}

// list returns what was found so far.
func (d *died) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.found...)
}

// judgeEnd looks at how a process ended that a signal had struck, or none (0).
func (d *died) judgeEnd(who string, struck syscall.Signal, err error) {
	switch {
	case struck == 0:
		d.add("%s ended though nothing had struck it: %v", who, endOf(err))
	case struck == syscall.SIGTERM && err != nil && !endedBy(err, syscall.SIGTERM): // which ends it before it listens
		d.add("%s ended badly after SIGTERM: %v", who, err)
	}
}

func endOf(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

func endedBy(err error, s syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == s
}

// blame makes an error of a dcol process a finding, unless the sequence was cut short.
func (w *world) blame(ctx context.Context, what string, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, errDied) {
		return err
	}
	w.died.add("%s: %v", what, err)
	return fmt.Errorf("%s: %w", what, errDied)
}
