package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/deadline"
)

// loop owns the connections that it accepted. Only its own goroutine touches them.
type loop struct {
	engine  *Engine
	sockets sockets
	epoll   int
	wake    int // an eventfd, readable while commands wait

	commands atomic.Uint32 // bits of command
	next     []resumption  // of openings that waited
	ends     []*end        // by descriptor
	serial   uint16        // counts the sockets of ends
	pairs    int
	young    []*pair                // they began to connect to their servers after settles was set
	older    []*pair                // they began before that
	settles  time.Time              // when the pairs in older are settled; zero: no pair waits for that
	busy     []*end                 // they moved much lately; closed ones stay until the next look
	looks    time.Time              // when their buffers are looked at; zero: there are none
	ready    []*end                 // their data is moved in the next turn, because others had theirs first
	due      *deadline.Queue[*pair] // pairs whose opening has a time limit
	// handshakes of clients that have not ended yet
	handshakes *deadline.Queue[*handshake]
	opensFast  bool // a listener takes data in SYNs, so that handshakes are looked at
	pipes      pipes
	spare      int    // a descriptor for the server of the last connection that is accepted; -1: there is none
	buffer     []byte // for what is read
	turn       int    // the bytes that one end moves before others have their turn
	drains     bool
	deaf       bool      // endListening was called
	full       bool      // there are MaxPairs, or too few descriptors, so the listeners are not watched
	retry      time.Time // when the listeners may be watched again; zero: at any time

	accepted, refused, lacking, moved, waiting atomic.Int64
}

// command is a request of another goroutine to a loop.
type command uint32

const (
	drain command = 1 << iota
	stopNow
)

const (
	// turnBytes is the number of bytes that one end moves before others have their turn.
	turnBytes    = 4 << 20
	eventsAtOnce = 256
	// yieldAfter is the time after which a loop yields its processor. After 10 ms, Go's monitor would take the loop for a
	// goroutine that hogs the processor, and would wake every few microseconds.
	yieldAfter = 8 * time.Millisecond
)

func newLoop(e *Engine) (l *loop, err error) {
	l = &loop{engine: e, sockets: kernel{}, buffer: make([]byte, chunkMost), turn: turnBytes, epoll: -1, wake: -1, spare: -1, due: deadline.New[*pair](nil), handshakes: deadline.New[*handshake](nil)}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create an epoll: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	if err := l.watch(l.wake, 0, unix.EPOLLIN); err != nil {
		return nil, err
	}
	if l.spare, err = l.reserve(); err != nil {
		return nil, fmt.Errorf("reserve a descriptor: %w", err)
	}
	err = l.listen(true)
	return l, err
}

// listen starts or stops waiting for new connections. Each new connection wakes one of the loops.
func (l *loop) listen(on bool) error {
	for _, fd := range l.engine.config.Listeners {
		if on {
			// A loop that waits in accept would stop all of the process.
			if err := unix.SetNonblock(fd, true); err != nil {
				return fmt.Errorf("listener %d: %w", fd, err)
			}
			// Accepted connections inherit it, which saves four calls for each.
			if err := prepare(fd); err != nil {
				return fmt.Errorf("listener %d: %w", fd, err)
			}
			l.opensFast = l.opensFast || takesFastOpen(fd)
			if err := l.watch(fd, 0, unix.EPOLLIN|unix.EPOLLEXCLUSIVE); err != nil {
				return err
			}
		} else {
			_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		}
	}
	return nil
}

func (l *loop) watch(fd int, serial uint16, events uint32) error {
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: int32(serial)}); err != nil {
		return fmt.Errorf("watch descriptor %d: %w", fd, err)
	}
	return nil
}

// tell passes a command on. Any goroutine may call it.
func (l *loop) tell(c command) {
	l.commands.Or(uint32(c))
	_, _ = unix.Write(l.wake, binary.NativeEndian.AppendUint64(nil, 1)) // a full counter wakes the loop, too
}

// run handles events until the loop is stopped, or drained.
func (l *loop) run() error {
	defer l.endListening()
	events := make([]unix.EpollEvent, eventsAtOnce)
	yielded := time.Now()
	for !l.done() {
		n, err := unix.EpollWait(l.epoll, events, l.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for events: %w", err)
		}
		for i := range max(n, 0) {
			l.event(int(events[i].Fd), uint16(events[i].Pad), events[i].Events)
		}
		l.moveReady()
		now := time.Now()
		l.endLate(now)
		l.endHandshakes(now)
		l.settle(now)
		l.lookAtBusy(now)
		l.listenAgain(now)
		if now.Sub(yielded) >= yieldAfter {
			runtime.Gosched()
			yielded = now
		}
	}
	return nil
}

// done reports whether the loop has nothing left to do.
func (l *loop) done() bool {
	return command(l.commands.Load())&stopNow != 0 || l.drains && l.pairs == 0
}

// listenAgain watches the listeners again if there is room for more connections. If the loop drains, it stops
// watching them.
func (l *loop) listenAgain(now time.Time) {
	if !l.drains && command(l.commands.Load())&drain != 0 {
		l.drains = true
		l.endListening()
	}
	if !l.full || l.drains || !l.engine.hasRoom() || now.Before(l.retry) {
		return
	}
	var err error
	if l.spare < 0 {
		l.spare, err = l.reserve()
	}
	if err == nil {
		l.full = false
		err = l.listen(true)
	}
	if err != nil {
		l.starve(errnoOf(err))
	}
}

// rest stops watching the listeners until there is room.
func (l *loop) rest() {
	if !l.full && !l.deaf {
		l.full = true
		_ = l.listen(false)
	}
}

// starve notes that descriptors or memory for another connection are lacking. The loop accepts none for a moment.
// Otherwise it would try again and again, because the listeners stay readable.
func (l *loop) starve(errno syscall.Errno) {
	now := time.Now()
	l.lacking.Add(1)
	l.engine.lack.note(errno, now)
	l.retry = now.Add(pause)
	l.rest()
}

// endListening stops watching the listeners. They may be closed once all loops have called it, because an epoll set
// keeps a closed descriptor if another process has the socket, too.
func (l *loop) endListening() {
	if !l.deaf {
		l.deaf = true
		_ = l.listen(false)
		l.engine.listening.Done()
	}
}

// timeout returns the longest time to wait for events, in milliseconds.
func (l *loop) timeout() int {
	if len(l.ready) > 0 {
		return 0
	}
	wait := time.Duration(-1)
	until := func(t time.Time) {
		if left := max(time.Until(t), 0) + time.Millisecond; wait < 0 || left < wait {
			wait = left
		}
	}
	if first := l.due.First(); first != nil {
		until(first.Due())
	}
	if first := l.handshakes.First(); first != nil {
		until(first.Due())
	}
	for _, t := range []time.Time{l.settles, l.looks} {
		if !t.IsZero() {
			until(t)
		}
	}
	switch {
	case l.full && !l.drains && time.Now().Before(l.retry):
		until(l.retry)
	case l.full && (wait < 0 || wait > pause):
		wait = pause // another loop may make room
	}
	if wait < 0 {
		return -1
	}
	return int(wait / time.Millisecond)
}

func (l *loop) event(fd int, serial uint16, events uint32) {
	if fd == l.wake {
		var b [8]byte
		_, _ = unix.Read(fd, b[:])
		l.resumeOpenings()
		return
	}
	if e := l.endOf(fd); e != nil {
		if e.serial == serial { // else it was meant for an earlier socket with this descriptor
			l.onEnd(e, events)
		}
		return
	}
	for _, listener := range l.engine.config.Listeners {
		if fd == listener {
			l.accept(fd)
		}
	}
}

// endOf returns the end with this descriptor, or nil.
func (l *loop) endOf(fd int) *end {
	if fd < len(l.ends) {
		return l.ends[fd]
	}
	return nil
}

func (l *loop) onEnd(e *end, events uint32) {
	p := e.pair
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLPRI|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		e.is &^= isEmpty
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLPRI|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		e.is |= isMarked
	}
	if events&unix.EPOLLERR != 0 {
		e.is |= isBroken
	}
	if events&unix.EPOLLPRI != 0 {
		e.is |= isUrgent
	}
	if e.is&isTCP != 0 && events&unix.EPOLLRDHUP != 0 && events&(unix.EPOLLPRI|unix.EPOLLERR|unix.EPOLLHUP) == 0 {
		e.is |= isEnding
	}
	if p.opening != nil {
		l.openEvent(e, events)
		return
	}
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		l.move(e.peer()) // the data that waits for this end
	}
	if !p.closed && events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		l.move(e)
	}
	// An end that has ended its sending is not read any more, so reading does not show a reset.
	if !p.closed && events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 && e.is&isShut != 0 && l.sockets.failed(int(e.fd)) {
		l.reset(p)
	}
}

func (l *loop) moveReady() {
	ready := l.ready
	l.ready = nil
	for _, e := range ready {
		e.is &^= isReady
		l.move(e)
	}
	if len(l.ready) == 0 {
		l.ready = ready[:0]
	}
}

// later makes the loop move the end's data in the next turn.
func (l *loop) later(e *end) {
	if e.is&isReady == 0 {
		e.is |= isReady
		l.ready = append(l.ready, e)
	}
}

// accept accepts new connections.
func (l *loop) accept(listener int) {
	for range 64 {
		if l.full {
			return
		}
		if !l.engine.hasRoom() {
			l.rest()
			return
		}
		fd, peer, errno := accept(listener)
		switch errno {
		case 0:
			l.accepted.Add(1)
			if !l.retry.IsZero() {
				l.engine.lack.accepted(time.Now())
			}
			l.open(fd, peer)
		case unix.EAGAIN:
			return
		case unix.ECONNABORTED, unix.EPERM: // the connection is gone already, or a firewall forbids it
		default:
			l.starve(errno)
			return
		}
	}
}

func (l *loop) close() {
	for _, e := range l.ends {
		if e != nil && !e.pair.closed {
			l.reset(e.pair)
		}
	}
	l.pipes.close()
	for _, fd := range []int{l.epoll, l.wake, l.spare} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	l.epoll, l.wake, l.spare = -1, -1, -1
}
