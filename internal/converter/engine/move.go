package engine

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// chunkLeast is the number of bytes that an end reads at once at first. It doubles each time the peer took a whole
	// chunk. So few bytes wait for a slow peer, and a fast one needs few calls. TCP is read, too, while no more bytes
	// than that arrive at once: a pipe would cost more than it saves.
	chunkLeast = 16 << 10
	// chunkMost bounds the doubling.
	chunkMost = 256 << 10
)

// move moves bytes from an end to its peer until one of the two would block, or others have their turn. It must not stop
// earlier, because events are edge-triggered.
func (l *loop) move(e *end) {
	if e.pair.closed || e.pair.opening != nil || e.is&isShut != 0 {
		return
	}
	for moved := 0; moved < l.turn; {
		n, errno := l.moveSome(e)
		moved += n
		l.moved.Add(int64(n))
		l.noteMoved(e, n)
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			if e == &e.pair.server || e.pair.server.is&isBroken != 0 {
				e.pair.spoke(false)
			}
			l.reset(e.pair) // a reset from one side becomes one for the other
			return
		case e.is&isDone != 0 && e.waits() == 0:
			l.shut(e)
			return
		}
	}
	l.later(e)
}

// waits returns the number of bytes that wait for the peer.
func (e *end) waits() int { return len(e.rest) + int(e.piped) }

// shut passes the end of a stream on to the peer. After both streams, it ends the pair.
func (l *loop) shut(e *end) {
	e.is |= isShut
	if e == &e.pair.server && e.peer().is&isDone == 0 {
		e.pair.spoke(false)
	}
	if e.peer().is&isShut != 0 {
		l.finish(e.pair)
		return
	}
	// A reset that came while its last bytes waited is not reported again.
	broken := e.is&isBroken != 0 && l.sockets.failed(int(e.fd))
	if broken || l.sockets.shutdown(int(e.peer().fd)) != nil {
		l.reset(e.pair)
	}
}

// moveSome writes what waits, or reads and writes one chunk. It returns EAGAIN if one of the two would block.
func (l *loop) moveSome(e *end) (n int, errno syscall.Errno) {
	switch {
	case e.piped > 0:
		return l.drainPipe(e)
	case len(e.rest) > 0:
		return l.writeRest(e)
	case e.is&isDone != 0:
		return 0, 0
	case e.is&isEmpty != 0:
		return 0, unix.EAGAIN
	case !l.engine.config.Budget.hasMemory():
		// Nothing is read that might have to wait: a socket that is writable takes so little at once. But an error must
		// be found, as it ends the pair.
		if e.is&isBroken == 0 && !l.sockets.writable(int(e.peer().fd)) {
			return 0, unix.EAGAIN
		}
		e.chunk = chunkLeast
	case e.chunk > chunkLeast && e.is&isUrgent == 0 && e.speaksTCP():
		if e.pipe = l.pipes.take(); e.pipe != nil {
			e.pair.stopHearing() // it would not hear what passes the pipe
			return l.fillPipe(e)
		}
	}
	return l.readAndWrite(e)
}

func (l *loop) readAndWrite(e *end) (moved int, errno syscall.Errno) {
	b := l.buffer[:e.chunk]
	got, errno := l.sockets.read(int(e.fd), b)
	if errno != 0 {
		return 0, errno
	}
	if got == 0 {
		e.is |= isDone
		return 0, 0
	}
	e.wasRead(got, int(e.chunk))
	if got < int(e.chunk) && e.is&isEnding != 0 {
		e.is |= isDone
	}
	if e == &e.pair.client && e.pair.hearer() != nil {
		defer l.overhear(e.pair, b[:got])
	}
	var n int
	for b = b[:got]; len(b) > 0; b = b[n:] {
		l.startWrite(e.peer())
		if n, errno = l.sockets.write(int(e.peer().fd), b); errno != 0 {
			break
		}
		moved += n
	}
	if errno == unix.EAGAIN {
		e.rest = append([]byte(nil), b...)
		l.waiting.Add(int64(len(b)))
		e.chunk = chunkLeast
	}
	if errno != 0 {
		return moved, errno
	}
	l.grow(e, got)
	return moved, 0
}

// grow doubles the end's chunk, up to chunkMost, if a read filled it.
func (l *loop) grow(e *end, got int) {
	if got == int(e.chunk) && e.chunk < chunkMost {
		e.chunk *= 2
	}
}

func (l *loop) writeRest(e *end) (n int, errno syscall.Errno) {
	l.startWrite(e.peer())
	n, errno = l.sockets.write(int(e.peer().fd), e.rest)
	if errno != 0 {
		return 0, errno
	}
	l.waiting.Add(-int64(n))
	if e.rest = e.rest[n:]; len(e.rest) == 0 {
		l.release(e)
	}
	return n, 0
}

// fillPipe moves bytes from the end into its pipe and, as far as possible, on to the peer.
func (l *loop) fillPipe(e *end) (n int, errno syscall.Errno) {
	got, errno := l.sockets.splice(int(e.fd), e.pipe.in, l.pipes.size)
	if errno != 0 || got == 0 {
		l.release(e)
		if errno != 0 {
			return 0, errno
		}
		e.chunk = chunkLeast
		return l.readAndWrite(e) // the end of the stream, or an urgent byte
	}
	if got < chunkLeast {
		e.chunk = chunkLeast
	}
	e.piped = int32(got)
	l.waiting.Add(int64(got))
	return l.drainPipe(e)
}

func (l *loop) drainPipe(e *end) (n int, errno syscall.Errno) {
	l.startWrite(e.peer())
	n, errno = l.sockets.splice(e.pipe.out, int(e.peer().fd), int(e.piped))
	if errno != 0 {
		return 0, errno
	}
	e.piped -= int32(n)
	l.waiting.Add(-int64(n))
	if e.piped == 0 {
		l.release(e)
	}
	return n, 0
}

// release gives back an end's memory and pipe.
func (l *loop) release(e *end) {
	if n := e.waits(); n > 0 { // it is being closed
		l.waiting.Add(-int64(n))
	}
	e.rest = nil
	if e.pipe != nil {
		l.pipes.give(e.pipe, e.piped > 0)
		e.pipe, e.piped = nil, 0
	}
}
