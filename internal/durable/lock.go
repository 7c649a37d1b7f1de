package durable

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrLocked: somebody else holds a directory.
var ErrLocked = errors.New("in use by another process")

// Lock waits until nobody else holds a directory, and holds it until unlock is called or this process ends. It
// keeps two from changing what is in it at once: the change of one would get lost.
func Lock(dir string) (unlock func(), err error) { return lock(dir, syscall.LOCK_EX) }

// TryLock is Lock, but does not wait: it is ErrLocked if somebody else holds the directory.
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
	return func() { d.Close() }, nil
}
