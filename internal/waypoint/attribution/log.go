package attribution

import (
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Limits of the log. With the defaults it holds about a million entries in 512 MiB.
type Limits struct {
	FileBytes int64 // a file of this size is renamed to FILE.1, that to FILE.2 …
	Files     int   // total number of files
	Queue     int   // entries waiting for the disk
	Share     int64 // bytes that one member may fill at once, and again within shareRefills; 0: no limit
}

// DefaultLimits are the limits of a waypoint. Each member may fill a tenth of the log, and as much again in a week. So one
// member alone needs nine weeks to push a line about another out of the log.
var DefaultLimits = Limits{FileBytes: 64 << 20, Files: 8, Queue: 1 << 15, Share: 8 * (64 << 20) / 10}

const (
	// signEvery and signLines limit how much of the log is unsigned after a crash.
	signEvery = time.Minute
	signLines = 4096
	// writeMost is the maximum number of entries written at a time.
	writeMost = 256
)

// Log writes entries from one goroutine.
type Log struct {
	log     *slog.Logger
	entries chan Entry
	stopped chan struct{}

	mu     sync.Mutex
	health Health
	full   []string
	closed bool
}

// Health describes the state of the log.
type Health struct {
	Err  error  // of the last write; nil: entries can be written
	Lost uint64 // number of entries that could not be written
}

// Open starts writing at the end of the log at path. It does not fail: if the log cannot be written, Health reports
// that, and writing is tried again.
func Open(path string, author Author, limits Limits, log *slog.Logger) *Log {
	l := &Log{log: log.With("subsystem", "attribution"),
		entries: make(chan Entry, limits.Queue), stopped: make(chan struct{})}
	w := &writer{path: path, limits: limits, author: &author, shares: newShares(limits.Share)}
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

// Health describes the state of the log.
func (l *Log) Health() Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health
}

// Full returns the members whose summaries have no room for more servers. The caller must stop them from opening
// connections while they are listed, or the log grows faster than their shares.
func (l *Log) Full() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full
}

func (l *Log) noteFull(members []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = members
}

// Close writes the queued entries and a signed head, and stops.
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

// run writes queued entries in batches, and signs regularly.
func (l *Log) run(w *writer) {
	defer close(l.stopped)
	defer w.close()
	due := time.NewTimer(signEvery)
	defer due.Stop()
	var entries []Entry
	for open := true; open; {
		entries = entries[:0]
		select {
		case e, ok := <-l.entries:
			if open = ok; ok {
				entries = append(entries, e)
			}
		case <-due.C:
			l.report(errors.Join(w.summarise(false, l.Health().Lost), w.sign(headSigned, l.Health().Lost)))
			l.noteFull(w.shares.full())
			due.Reset(signEvery)
			continue
		}
		for more := open; more && len(entries) < writeMost; {
			select {
			case e, ok := <-l.entries:
				if more, open = ok, ok; ok {
					entries = append(entries, e)
				}
			default:
				more = false
			}
		}
		entries = w.shares.sift(entries, time.Now())
		l.noteFull(w.shares.full())
		if len(entries) == 0 {
			continue
		}
		err := w.write(entries, l.Health().Lost)
		if err != nil {
			l.lose(len(entries))
		} else if w.unsigned >= signLines {
			err = w.sign(headSigned, l.Health().Lost)
		}
		l.report(err)
	}
	l.report(errors.Join(w.summarise(true, l.Health().Lost), w.sign(logClosed, l.Health().Lost)))
}

func (l *Log) lose(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.health.Lost += uint64(n)
}

// report records the result of a write and logs changes.
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
		l.log.Info("the attribution log can be written again", "lost", lost)
	}
}
