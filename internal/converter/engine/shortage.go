package engine

import (
	"log/slog"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pause is the time for which a loop that could not accept a connection leaves the listeners alone. Meanwhile
	// connections wait in the listeners' queues, where they cost nothing.
	pause = 100 * time.Millisecond
	// shortageCalm is the time without any lack after which a shortage is logged as over.
	shortageCalm = 10 * time.Second
)

// shortage logs when the process begins to lack descriptors or memory for connections, and when it has enough again.
// All loops use it.
type shortage struct {
	log *slog.Logger

	mu          sync.Mutex
	since, last time.Time // of the present shortage; zero: there is none
}

// lacks reports whether an error says that the process, or the system, has too few descriptors or too little memory.
func lacks(errno syscall.Errno) bool {
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ENOSPC:
		return true
	}
	return false
}

// note logs the first failure of a shortage.
func (s *shortage) note(errno syscall.Errno, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = now
	if s.since.IsZero() {
		s.since = now
		s.log.Warn("no connection can be accepted; those that there are continue", "err", errno,
			"fix", "raise the limits of descriptors and memory (ulimit -n, LimitNOFILE=)")
	}
}

// accepted logs the end of a shortage, once connections have been accepted for a while without another failure.
func (s *shortage) accepted(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() && now.Sub(s.last) >= shortageCalm {
		s.log.Info("connections are accepted again", "lacked_for", s.last.Sub(s.since))
		s.since = time.Time{}
	}
}

// reserve returns a descriptor that only holds a place: it is closed when another descriptor is needed.
func (l *loop) reserve() (int, error) { return unix.FcntlInt(uintptr(l.wake), unix.F_DUPFD_CLOEXEC, 0) }

// spendSpare closes the loop's spare descriptor, if it has one. No connection is accepted before there is another, so
// that none is accepted for whose server there is no descriptor.
func (l *loop) spendSpare() bool {
	if l.spare < 0 {
		return false
	}
	_ = unix.Close(l.spare)
	l.spare = -1
	return true
}
