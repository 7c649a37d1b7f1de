package attribution

import (
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Limits of the log. With the defaults it holds about a million entries in 512 MiB.
type Limits struct {
	FileBytes int64 // a file that has grown to this is set aside as FILE.1, that as FILE.2 …
	Files     int   // how many there are in all
	Queue     int   // entries that wait for the disk
	Share     int64 // bytes that one member may fill at once, and again within shareRefills; 0: all of it
}

// DefaultLimits are those of a waypoint. With a tenth of the log for each, and as much again in a week, one member
// alone takes nine weeks to push a line about another out of it.
var DefaultLimits = Limits{FileBytes: 64 << 20, Files: 8, Queue: 1 << 15, Share: 8 * (64 << 20) / 10}

const (
	// signEvery and signLines bound how much of the log a crash leaves unsigned.
	signEvery = time.Minute
	signLines = 4096
	// writeMost is how many entries are written at a time.
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
	Err  error  // why entries cannot be written now; nil if they can
	Lost uint64 // entries that were not written, ever
}

// Open begins to write at path, after what is there. It does not fail: a log that cannot be written
// is a matter of Health, and is tried again.
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

// Full lists the members of which the log can name no more servers for now. They must not open connections until they
// are listed no longer, or the log will grow faster than their shares of it.
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

// Close writes what is queued, signs and ends.
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

// run writes what is queued, as much as there is at a time, and signs now and then.
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
		l.log.Info("the attribution log can be written again", "lost", lost)
	}
}
