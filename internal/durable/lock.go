package durable

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrLocked is returned by TryLock if another process holds the lock.
var ErrLocked = errors.New("in use by another process")

// Lock locks a directory. It waits for another holder, and holds the lock until unlock is called or
// this process ends. It prevents lost updates by concurrent changes.
func Lock(dir string) (unlock func(), err error) { return lock(dir, syscall.LOCK_EX) }

// TryLock is like Lock, but returns ErrLocked instead of waiting.
func TryLock(dir string) (unlock func(), err error) {
	unlock, err = lock(dir, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", dir, ErrLocked)
	}
	return unlock, err
}

func lock(dir string, how int) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(d.Fd()), how); err != nil {
		d.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() {
		// Closing does not unlock while a process that is being started still has the descriptor.
		_ = syscall.Flock(int(d.Fd()), syscall.LOCK_UN)
		d.Close()
	}, nil
}
