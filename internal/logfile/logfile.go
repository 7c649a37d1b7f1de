// Package logfile writes a long-running process's log to a file of bounded size, for hosts where
// neither systemd-journald nor logrotate(8) does that. The process's standard output and error go
// to the same file, so that it includes the Go runtime's messages when the program crashes.
package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// File is a log that is renamed to PATH.1, replacing the previous one, when it reaches its limit. A
// new log is then started. So the logs use at most twice the limit, plus one line. Write is safe
// for concurrent use. Other output of the process counts towards the limit.
type File struct {
	path     string
	limit    int64
	standard []int // descriptors that refer to this file

	mu   sync.Mutex
	file *os.File
	at   int64 // size at which to rotate
}

// Open opens or creates the log, and makes it the process's standard output and error.
func Open(path string, limit int64) (*File, error) { return open(path, limit, 1, 2) }

func open(path string, limit int64, standard ...int) (*File, error) {
	l := &File{path: path, limit: limit, standard: standard}
	if err := l.begin(); err != nil {
		return nil, err
	}
	return l, nil
}

// begin opens the file at the path. On an error nothing changes.
func (l *File) begin() error {
	// O_APPEND, because others may write to the same file, such as the process that started this
	// one.
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
			l.at = info.Size() + l.limit // not checked for every line
			fmt.Fprintf(l.file, "%s grows beyond its limit: %v\n", l.path, err)
		}
	}
	return l.file.Write(line)
}

func (l *File) rotate() error {
	// It may have been removed by someone.
	if err := os.Rename(l.path, l.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put the log aside: %w", err)
	}
	return l.begin()
}
