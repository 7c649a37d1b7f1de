package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/packaging"
)

// lockDir holds the lock files of network namespaces. It does not follow run_dir, so that agents with
// different configurations share it.
const lockDir = "/run/dcol"

// namespaceLock is held by the only agent of a network namespace, and ends with its process.
type namespaceLock struct{ file *os.File }

// lockNamespace makes sure that one agent runs in this network namespace: it locks a file in dir that has the
// namespace's number in its name. Only root and the agent's user can open that file, so other users cannot hold the lock.
func lockNamespace(dir string) (*namespaceLock, error) {
	_, number, err := netstate.NetworkNamespace()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("agent-%d.lock", number))
	for {
		lock, err := tryLock(path)
		if err != nil {
			return nil, err
		}
		if lock.isAt(path) {
			err := lock.sign()
			return lock, err
		}
		lock.file.Close() // its last holder removed it while we opened it
	}
}

func tryLock(path string) (*namespaceLock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	// Without this, the agent that systemd starts, which is not root, could not see that an agent of root
	// runs.
	if err := durable.Adopt(file, path); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = &lockedError{pid: signature(file)}
	} else if err != nil {
		err = fmt.Errorf("lock %s: %w", path, err)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &namespaceLock{file}, nil
}

// isAt reports whether the locked file is still the one at path.
func (l *namespaceLock) isAt(path string) bool {
	ours, err := l.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(ours, there)
}

// sign writes into the file whose lock it is.
func (l *namespaceLock) sign() error {
	err := l.file.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(l.file, os.Getpid())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lock the network namespace: %w", err), l.Close())
	}
	return nil
}

// signature returns the process that has signed the file; 0 if it has not yet.
func signature(file *os.File) (pid int) {
	if _, err := fmt.Fscan(file, &pid); err != nil {
		return 0
	}
	return pid
}

// lockedError reports that another agent has the namespace, and how to stop it.
type lockedError struct{ pid int }

func (e *lockedError) Error() string {
	if e.pid == 0 {
		return "another agent runs on this host (`dcol status` asks it): stop it first"
	}
	stop := fmt.Sprintf("kill %d", e.pid)
	if packaging.SystemdRuns() {
		stop = "systemctl stop dcol, or " + stop
	}
	return fmt.Sprintf("another agent runs on this host, as process %d (`dcol status` asks it): stop it first (%s)", e.pid, stop)
}

// Close gives the namespace to the next agent.
func (l *namespaceLock) Close() error {
	return errors.Join(os.Remove(l.file.Name()), l.file.Close())
}
