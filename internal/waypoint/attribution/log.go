package attribution

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Limits of the log. With the defaults it holds a few million entries in 512 MiB.
type Limits struct {
	FileBytes int64 // a file that has grown to this is set aside as FILE.1, that as FILE.2 …
	Files     int   // how many there are in all
	Queue     int   // entries that wait for the disk
}

// DefaultLimits are those of a waypoint.
var DefaultLimits = Limits{FileBytes: 64 << 20, Files: 8, Queue: 1 << 15}

// retryAfter is how long a log that could not be written is left alone.
const retryAfter = time.Second

// Log writes entries from one goroutine.
type Log struct {
	path    string
	limits  Limits
	log     *slog.Logger
	entries chan Entry
	stopped chan struct{}

	mu     sync.Mutex
	health Health
	closed bool
}

// Health tells how the log does.
type Health struct {
	Err  error  // why entries cannot be written now; nil if they can
	Lost uint64 // entries that were not written, ever
}

// Open begins to write at path, after what is there. It does not fail: a log that cannot be written
// is a matter of Health, and is tried again.
func Open(path string, limits Limits, log *slog.Logger) *Log {
	l := &Log{path: path, limits: limits, log: log.With("subsystem", "attribution"),
		entries: make(chan Entry, limits.Queue), stopped: make(chan struct{})}
	w := &writer{path: path, limits: limits}
	l.report(w.open())
	go l.run(w)
	return l
}

// Write queues an entry. It never waits: if the queue is full, the entry is lost and counted.
func (l *Log) Write(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	select {
	case l.entries <- e:
	default:
		l.health.Lost++
	}
}

// Health tells how the log does.
func (l *Log) Health() Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health
}

// Close writes what is queued and ends.
func (l *Log) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.entries)
	}
	l.mu.Unlock()
	<-l.stopped
	return l.Health().Err
}

func (l *Log) run(w *writer) {
	defer close(l.stopped)
	defer w.close()
	for e := range l.entries {
		batch := 1
		w.add(e)
	more:
		for len(w.buffer) < 64<<10 {
			select {
			case e, ok := <-l.entries:
				if !ok {
					break more
				}
				batch++
				w.add(e)
			default:
				break more
			}
		}
		if err := w.flush(); err != nil {
			l.lose(batch)
			l.report(err)
			continue
		}
		l.report(nil)
	}
}

func (l *Log) lose(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.health.Lost += uint64(n)
}

// report keeps the state of the disk and logs its changes.
func (l *Log) report(err error) {
	l.mu.Lock()
	before := l.health.Err
	l.health.Err = err
	lost := l.health.Lost
	l.mu.Unlock()
	switch {
	case err != nil && before == nil:
		l.log.Error("the attribution log cannot be written", "err", err)
	case err == nil && before != nil:
		l.log.Info("the attribution log is written again", "lost", lost)
	}
}

// writer owns the file.
type writer struct {
	path    string
	limits  Limits
	file    *os.File
	size    int64
	buffer  []byte
	failure error
	failed  time.Time
}

func (w *writer) add(e Entry) {
	line, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("attribution: an entry that is no JSON: %v", err)) // Entry holds only plain types
	}
	w.buffer = append(append(w.buffer, line...), '\n')
}

// flush writes the buffer whole or not at all, and empties it either way.
func (w *writer) flush() error {
	defer func() { w.buffer = w.buffer[:0] }()
	if w.failure != nil && time.Since(w.failed) < retryAfter {
		return w.failure
	}
	w.failure = w.write()
	if w.failure != nil {
		w.failed = time.Now()
		w.close()
	}
	return w.failure
}

func (w *writer) write() error {
	if err := w.open(); err != nil {
		return err
	}
	if w.size > 0 && w.size+int64(len(w.buffer)) > w.limits.FileBytes {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	n, err := w.file.Write(w.buffer)
	if err != nil {
		if n > 0 {
			_ = w.file.Truncate(w.size) // no half lines; a full disk lets files shrink
		}
		return fmt.Errorf("write the attribution log: %w (free space or mend %s)", err, w.path)
	}
	w.size += int64(n)
	return nil
}

func (w *writer) open() error {
	if w.file != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(w.path), 0o750); err != nil {
		return fmt.Errorf("open the attribution log: %w (set [waypoint] log to a file that can be written)", err)
	}
	file, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("open the attribution log: %w (set [waypoint] log to a file that can be written)", err)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("open the attribution log: %w", err)
	}
	w.file, w.size = file, info.Size()
	return nil
}

func (w *writer) rotate() error {
	w.close()
	for i := w.limits.Files - 1; i >= 1; i-- {
		from := w.aside(i - 1)
		if err := os.Rename(from, w.aside(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate the attribution log: %w", err)
		}
	}
	if w.limits.Files == 1 {
		if err := os.Remove(w.path); err != nil {
			return fmt.Errorf("rotate the attribution log: %w", err)
		}
	}
	return w.open()
}

// aside is the name of the i-th older file.
func (w *writer) aside(i int) string {
	if i == 0 {
		return w.path
	}
	return fmt.Sprintf("%s.%d", w.path, i)
}

func (w *writer) close() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}
