// Package logfile keeps a long-running process's log in a file that does not grow for ever, where no
// systemd-journald or logrotate(8) does that. The process's standard output and error are the same file, so that
// what the Go runtime says when it ends a program is in it too. It imports nothing of ours.
package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// File is a log that is renamed to PATH.1, in place of the one before, when it has reached its limit; then
// it begins anew. So there is at most twice the limit on the disk, and a line. Its Write may be called from
// anywhere; what else the process writes to its standard output or error counts, too.
type File struct {
	path     string
	limit    int64
	standard []int // descriptors that are this file

	mu   sync.Mutex
	file *os.File
	at   int64 // the size from which on it is rotated
}

// Open opens or makes the log, and makes it the process's standard output and error.
func Open(path string, limit int64) (*File, error) { return open(path, limit, 1, 2) }

func open(path string, limit int64, standard ...int) (*File, error) {
	l := &File{path: path, limit: limit, standard: standard}
	if err := l.begin(); err != nil {
		return nil, err
	}
	return l, nil
}

// begin opens what is at the path. On an error all is as it was.
func (l *File) begin() error {
	// Appending: others may write to the same file, as who has started this process does.
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	for _, fd := range l.standard {
		if err := unix.Dup3(int(file.Fd()), fd, 0); err != nil {
			return errors.Join(fmt.Errorf("make %s descriptor %d: %w", l.path, fd, err), file.Close())
		}
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.at = file, l.limit
	return nil
}

// Write writes a whole line, to this log or the next one.
func (l *File) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if info, err := l.file.Stat(); err == nil && info.Size() >= l.at {
		if err := l.rotate(); err != nil {
			l.at = info.Size() + l.limit // not with every line
			fmt.Fprintf(l.file, "%s grows beyond its limit: %v\n", l.path, err)
		}
	}
	return l.file.Write(line)
}

func (l *File) rotate() error {
	// Somebody may have removed it.
	if err := os.Rename(l.path, l.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put the log aside: %w", err)
	}
	return l.begin()
}
