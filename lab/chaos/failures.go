package chaos

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
)

// collector collects lines from several goroutines.
type collector struct {
	mu    sync.Mutex
	lines []string
}

func (c *collector) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, fmt.Sprintf(format, args...))
}

// list returns the lines so far.
func (c *collector) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.lines...)
}

// errDColFailed ends a sequence that cannot go on because dcol failed. The world's failures have the reason.
var errDColFailed = errors.New("dcol failed")

// failureOf describes what is wrong with the way in which a process ended, or returns "" if nothing is. struck is the
// signal that was sent to it, 0 if none was.
func failureOf(who string, struck syscall.Signal, err error) string {
	switch {
	case struck == 0:
		return fmt.Sprintf("%s ended though nothing had struck it: %v", who, endOf(err))
	case struck == syscall.SIGTERM && err != nil && !endedBy(err, syscall.SIGTERM): // which ends it before it listens
		return fmt.Sprintf("%s ended badly after SIGTERM: %v", who, err)
	}
	return ""
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

// failed records an error of a dcol process as a finding, unless the sequence was cut short. The lab's own errors are not
// findings: the sequence is repeated after them.
func (w *world) failed(ctx context.Context, what string, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, errDColFailed) {
		return err
	}
	w.failures.add("%s: %v", what, err)
	return fmt.Errorf("%s: %w", what, errDColFailed)
}
