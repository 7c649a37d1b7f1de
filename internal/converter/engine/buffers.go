package engine

import (
	"math/bits"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// This file bounds the kernel's memory for data of pairs. Linux lets the buffers of a fast connection grow to tens of
// megabytes. They fill up when the reader stops, so without a bound a few dozen slow readers could take all the memory
// that the host has for TCP.
//
// An end that has moved some data is busy. It has a buffer for what arrives at it, and one at its peer for what is to be
// sent. Linux chooses their sizes, but once a second those that exceed the end's share (shares.go) are made smaller. An
// end whose reader has stopped keeps its buffers, and the others have shares of the rest.

const (
	// busyAfter is the number of bytes after which an end is busy.
	busyAfter = 32 << 10
	// looksEvery is the time between two looks at the busy ends.
	looksEvery = time.Second
	// idleLooks is the number of looks after which an end that moves nothing and holds nothing is busy no more.
	idleLooks = 10
	// bufferKept is the most that the buffers of an end keep that is busy no more. It suffices until the end is busy again.
	bufferKept = 512 << 10
)

// use is the use of the kernel's memory by an end.
type use struct {
	recent uint32 // the number of bytes moved since the last look
	held   int32  // the size of its buffers, in bytes, while it holds data for a slow reader
	idle   uint8  // the number of looks since it last moved or held data
	// The logarithms of what the buffers were bounded to; 0: Linux chooses their sizes.
	arriving, sending uint8
	clamped           bool // the buffer for what arrives is not bounded yet, but its window is
}

func (l *loop) shares() *shares { return l.engine.config.Budget.shares }

// noteMoved notes that the end moved n bytes.
func (l *loop) noteMoved(e *end, n int) {
	e.use.recent += uint32(n)
	if e.is&isBusy != 0 || e.use.recent < busyAfter {
		return
	}
	e.is |= isBusy
	l.busy = append(l.busy, e)
	l.shares().change(e.pair.mark, 1, 0)
	l.bound(e, l.shares().of(e.pair.mark))
	if l.looks.IsZero() {
		l.looks = time.Now().Add(looksEvery)
	}
}

// lookAtBusy bounds the buffers of busy ends by their shares.
func (l *loop) lookAtBusy(now time.Time) {
	if l.looks.IsZero() || now.Before(l.looks) {
		return
	}
	l.busy = slices.DeleteFunc(l.busy, func(e *end) bool {
		if e.is&isBusy != 0 { // else it was closed
			l.look(e)
		}
		return e.is&isBusy == 0
	})
	if l.looks = (time.Time{}); len(l.busy) > 0 {
		l.looks = now.Add(looksEvery)
	}
}

func (l *loop) look(e *end) {
	moved := e.use.recent > 0
	e.use.recent = 0
	switch {
	case moved:
		e.use.idle = 0
		l.setHeld(e, 0)
		l.bound(e, l.shares().of(e.pair.mark))
	case l.holdsData(e):
		e.use.idle = 0
		l.setHeld(e, l.sockets.buffer(int(e.fd), unix.SO_RCVBUF)+l.sockets.buffer(int(e.peer().fd), unix.SO_SNDBUF))
	case e.use.idle < idleLooks:
		e.use.idle++
		l.setHeld(e, 0)
	default:
		e.use.idle = 0
		l.bound(e, bufferKept)
		if e.use.clamped { // nothing is under way
			l.bound(e, bufferKept)
		}
		l.endBusy(e)
	}
}

// holdsData reports whether data waits for the end's reader.
func (l *loop) holdsData(e *end) bool {
	return e.waits() > 0 || l.sockets.unread(int(e.fd)) > 0 || l.sockets.unsent(int(e.peer().fd)) > 0
}

// setHeld changes whether a busy end counts as one that holds data, with buffers of this size, or as one that moves it (0).
func (l *loop) setHeld(e *end, bytes int) {
	moving := min(1, e.use.held) - min(1, int32(bytes))
	l.shares().change(e.pair.mark, int(moving), int64(bytes)-int64(e.use.held))
	e.use.held = int32(bytes)
}

// endBusy ends that the end is busy, if it is.
func (l *loop) endBusy(e *end) {
	if e.is&isBusy != 0 {
		e.is &^= isBusy
		l.setHeld(e, 0)
		l.shares().change(e.pair.mark, -1, 0)
	}
}

// bound makes both buffers of an end smaller if they are larger than most. If they were made smaller before, they may
// become as large as most again.
func (l *loop) bound(e *end, most int) {
	log := uint8(bits.Len(uint(most)) - 1)
	l.boundArriving(e, log)
	fd, u := int(e.peer().fd), &e.use
	if u.sending != log && (u.sending > 0 || l.sockets.buffer(fd, unix.SO_SNDBUF) > most) {
		l.sockets.setBuffer(fd, unix.SO_SNDBUF, most)
		u.sending = log
	}
}

// boundArriving bounds the buffer for what arrives. It becomes smaller in two steps, because Linux drops what does not fit,
// although the sender was allowed to send it. First the window becomes smaller, and by the next look so little is under
// way that it fits. MPTCP lacks the first step.
func (l *loop) boundArriving(e *end, log uint8) {
	fd, u := int(e.fd), &e.use
	lowers := u.arriving > log || u.arriving == 0 && l.sockets.buffer(fd, unix.SO_RCVBUF) > 1<<log
	switch {
	case u.clamped || u.arriving > 0 && u.arriving < log:
		u.arriving, u.clamped = log, false
		l.sockets.setBuffer(fd, unix.SO_RCVBUF, 1<<log)
		l.sockets.clampWindow(fd, 1<<log)
	case lowers:
		u.arriving, u.clamped = log, true
		l.sockets.clampWindow(fd, 1<<log/4)
	}
}
