package engine

import (
	"golang.org/x/sys/unix"
)

// pair is a connection to a client and one to its server, between which bytes move.
type pair struct {
	client, server end
	opening        *opening   // nil once the server is reached
	observers      *observers // nil: none
	mark           uint32     // of the connection to the server (Dial.Mark)
	closed         bool
}

// end is one of a pair's two sockets, with the bytes that were read from it and wait to be written to the other.
type end struct {
	pair   *pair
	rest   []byte // the bytes that wait, if they are in memory
	pipe   *pipe  // has the bytes that wait, if they came by splice
	piped  int32  // the number of bytes in pipe
	chunk  int32  // the most bytes that are read at once
	fd     int32  // -1: none
	is     state
	serial uint16 // the number of its socket in the loop; see loop.endOf
	use    use
}

type state uint16

const (
	isMPTCP   state = 1 << iota
	isTCP           // a client has neither of these two bits until its protocol is known
	isDone          // its other side sends no more
	isShut          // and its peer was told so
	isReady         // is in loop.ready
	isEmpty         // there is nothing to read before the next event
	isMarked        // its stream has an end, an error or an urgent byte in it, at which a read stops
	isUrgent        // it is TCP, and has had an urgent byte, which a splice does not pass
	isBroken        // it has an error, such as a reset
	isEnding        // it is TCP, and the end of its stream has arrived, so a read that is not filled gets the last bytes
	isWritten       // something was written to it
	isPrompt        // it sends small packets without waiting for acknowledgements
	isBusy          // it is in loop.busy
)

func (e *end) peer() *end {
	if e == &e.pair.client {
		return &e.pair.server
	}
	return &e.pair.client
}

// wasRead notes that a read got n bytes of at most most. After less than that, Linux reports an event when there is
// more to read, so that the read which would only return EAGAIN is saved.
func (e *end) wasRead(n, most int) {
	if n < most && e.is&isMarked == 0 {
		e.is |= isEmpty
	}
}

// speaksTCP reports whether an end is not an MPTCP connection. It asks the kernel when it is first called, because short
// connections never need the answer.
func (e *end) speaksTCP() bool {
	if e.is&(isMPTCP|isTCP) == 0 {
		e.is |= protocolOf(isMultipath(int(e.fd)))
	}
	return e.is&isTCP != 0
}

func protocolOf(mptcp bool) state {
	if mptcp {
		return isMPTCP
	}
	return isTCP
}

// add takes a socket as an end, and watches it. Linux reports an event if there is something to read already.
func (l *loop) add(p *pair, e *end, fd int, is state) error {
	l.serial++
	*e = end{pair: p, fd: int32(fd), chunk: chunkLeast, is: isEmpty | is, serial: l.serial}
	for fd >= len(l.ends) {
		l.ends = append(l.ends, make([]*end, max(64, len(l.ends)))...)
	}
	l.ends[fd] = e
	if is&isMPTCP == 0 {
		l.sockets.keepUrgent(fd) // before anything is read: a read without it skips an urgent byte
	}
	return l.watch(fd, l.serial, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLPRI|unix.EPOLLET)
}

// observers learn of a pair's first bytes after the server was reached.
type observers struct {
	hearer  Hearer  // of the client's bytes; nil: none
	witness Witness // of the server's; nil: none, or it knows
}

// hearer returns the Hearer that wants more of the client's bytes, or nil.
func (p *pair) hearer() Hearer {
	if p.observers == nil {
		return nil
	}
	return p.observers.hearer
}

// stopHearing gives the hearer no more of the client's bytes.
func (p *pair) stopHearing() {
	if p.observers != nil {
		p.observers.hearer = nil
	}
}

// spoke passes to the witness whether the server has said anything, unless it was told before.
func (p *pair) spoke(spoke bool) {
	if o := p.observers; o != nil && o.witness != nil {
		o.witness.Spoke(spoke)
		o.witness = nil
	}
}

// reset ends both sides at once.
func (l *loop) reset(p *pair) { l.closePair(p, l.sockets.reset) }

// finish ends a pair whose bytes are all written.
func (l *loop) finish(p *pair) { l.closePair(p, l.sockets.close) }

func (l *loop) closePair(p *pair, closeFD func(int)) {
	if p.closed {
		return
	}
	p.closed, p.observers = true, nil
	if p.opening != nil {
		l.endOpening(p)
	}
	for _, e := range []*end{&p.client, &p.server} {
		l.release(e)
		l.endBusy(e)
		if e.fd >= 0 && e.pair != nil {
			l.ends[e.fd] = nil
			closeFD(int(e.fd))
			e.fd = -1
		}
	}
	l.pairs--
	l.engine.count(-1)
}
