package engine

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/deadline"
)

const (
	// openingMost bounds what a client, or the other side of a Dial, may say before the connection is open.
	openingMost = 16 << 10
	// earlyMost bounds what a Dial sends of the client's bytes before it is answered. It fits into the buffer of a
	// new socket, and has room for a request or a TLS ClientHello.
	earlyMost = 4 << 10
	// partingTime is the time for which a refused client may still send. A socket that is closed before everything was
	// read sends a reset, which could overtake the reply.
	partingTime = 2 * time.Second
)

// opening is a pair's state until its server is reached.
type opening struct {
	front Opening
	dial  *Dial  // nil: the server is not known yet
	heard []byte // bytes from the client that are not used yet
	early int    // the number of bytes of heard that the server was sent already
	said  []byte // bytes from the server that are not used yet
	waits bool   // for the Step that Step.Later announced
	parts bool   // the client got its last reply

	began     time.Time // to dial
	up        time.Time // the connection to the server; zero: not yet
	again     bool      // by TCP, as the server has answered without MPTCP
	multipath bool      // the server speaks MPTCP on the connection
	plain     bool      // see Result.Plain
	inSYN     int       // the number of bytes of the greeting that the SYN had
	fast      FastOpen  // how sending data in the SYN went
	due       deadline.Entry[*pair]
}

// open begins a pair with a connection that was accepted.
func (l *loop) open(fd int, peer netip.AddrPort) {
	p := &pair{}
	front, err := l.engine.config.Front.Open(Accepted{
		Peer: peer, HangUp: func() { l.engine.resume(l, resumption{pair: p, hangUp: true}) }, fd: fd,
	})
	if err != nil {
		l.refused.Add(1)
		resetSocket(fd)
		return
	}
	p.opening = &opening{front: front}
	p.opening.due.Item = p
	p.server.fd = -1
	l.pairs++
	l.engine.count(1)
	l.due.Set(&p.opening.due, time.Now().Add(l.engine.config.OpeningTimeout))
	if err := l.add(p, &p.client, fd, isPrompt); err != nil {
		l.starve(errnoOf(err))
		l.refuse(p)
		return
	}
	l.watchHandshake(p)
	l.step(p, front.Read(nil))
}

// openEvent handles events of a pair that is not open yet.
func (l *loop) openEvent(e *end, events uint32) {
	p := e.pair
	if e == &p.client {
		// A client that is gone needs no server. One that has only ended its sending does.
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 && !p.opening.parts && connectError(int(e.fd)) != 0 {
			l.refuse(p)
			return
		}
		l.hear(p)
		return
	}
	if o := p.opening; o.up.IsZero() && events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		l.connected(p, events)
	}
	if o := p.opening; o != nil && !o.up.IsZero() && o.dial.Await != nil {
		l.await(p)
	}
}

// hear reads what the client says before its server is known. Later bytes stay in the socket.
func (l *loop) hear(p *pair) {
	for !p.closed && p.opening != nil && p.opening.dial == nil && !p.opening.waits && p.client.is&isEmpty == 0 {
		o := p.opening
		n, errno := read(int(p.client.fd), l.buffer[:openingMost])
		switch {
		case errno == unix.EAGAIN:
			return
		case o.parts && errno == 0 && n > 0:
			continue
		case o.parts:
			l.finish(p)
			return
		case errno != 0 || n == 0 || len(o.heard)+n > openingMost:
			l.refuse(p)
			return
		}
		p.client.wasRead(n, openingMost)
		o.heard = append(o.heard, l.buffer[:n]...)
		l.step(p, o.front.Read(o.heard))
	}
}

// step does what the front wants.
func (l *loop) step(p *pair, s Step) {
	o := p.opening
	if len(s.Reply) > 0 && !l.reply(p, s.Reply) {
		return
	}
	o.heard = o.heard[min(s.Used, len(o.heard)):]
	switch {
	case s.Reset:
		l.refuse(p)
	case s.Close:
		l.part(p)
	case s.Later != nil:
		o.waits = true
		s.Later(func(next Step) { l.engine.resume(l, resumption{pair: p, step: next}) })
	case s.Dial != nil:
		l.dial(p, s.Dial)
	}
}

// resumption is the Step that an opening waited for, or that it ends.
type resumption struct {
	pair   *pair
	step   Step
	hangUp bool
}

// resumeOpenings continues openings that waited, or ends them.
func (l *loop) resumeOpenings() {
	for _, r := range l.engine.resumed(l) {
		o := r.pair.opening
		switch {
		case r.pair.closed || o == nil:
			continue
		case r.hangUp:
			if o.dial == nil || o.dial.MayHangUp {
				l.refuse(r.pair)
			}
			continue
		case !o.waits:
			continue
		}
		r.pair.opening.waits = false
		l.step(r.pair, r.step)
		l.hear(r.pair) // what came while nothing was read
	}
}

// reply sends a few bytes to the client, and reports whether the pair goes on.
func (l *loop) reply(p *pair, b []byte) bool {
	if n, errno := write(int(p.client.fd), b); errno != 0 || n != len(b) {
		l.refuse(p)
		return false
	}
	return true
}

// part ends a pair that does not open, so that the client gets the reply.
func (l *loop) part(p *pair) {
	l.refused.Add(1)
	l.hangUp(p)
	o := p.opening
	o.dial, o.parts = nil, true
	l.due.Set(&o.due, time.Now().Add(partingTime))
	if err := unix.Shutdown(int(p.client.fd), unix.SHUT_WR); err != nil {
		l.finish(p)
		return
	}
	l.hear(p)
}

// join begins to move bytes between the two ends.
func (l *loop) join(p *pair) {
	o := p.opening
	l.endOpening(p)
	for _, waits := range []struct {
		e *end
		b []byte
	}{{&p.client, o.heard[o.early:]}, {&p.server, o.said}} {
		if len(waits.b) > 0 {
			waits.e.rest = waits.b
			l.waiting.Add(int64(len(waits.b)))
		}
	}
	var watching observers
	watching.witness, _ = o.front.(Witness)
	if h, is := o.front.(Hearer); is {
		if len(p.client.rest) > 0 {
			_, _ = l.writeRest(&p.client) // move finds an error again
		}
		if h.Hear(o.heard) {
			watching.hearer = h
		}
	}
	if watching.hearer != nil || watching.witness != nil {
		p.observers = &watching
	}
	l.move(&p.client)
	l.move(&p.server)
}

// overhear passes the client's bytes to the hearer.
func (l *loop) overhear(p *pair, b []byte) {
	if !p.hearer().Hear(b) {
		p.stopHearing()
	}
}

// endOpening forgets how a pair began.
func (l *loop) endOpening(p *pair) {
	front := p.opening.front
	l.due.Set(&p.opening.due, time.Time{})
	p.opening = nil
	if e, is := front.(Ender); is {
		e.Ended()
	}
}

// refuse ends a pair that does not open.
func (l *loop) refuse(p *pair) {
	l.refused.Add(1)
	l.reset(p)
}

// endLate ends openings that have taken too long.
func (l *loop) endLate(now time.Time) {
	for {
		first := l.due.First()
		if first == nil || now.Before(first.Due()) {
			return
		}
		p := first.Item
		switch {
		case p.opening.parts:
			l.finish(p)
		case p.opening.dial != nil:
			l.dialled(p, unix.ETIMEDOUT)
		default:
			l.refuse(p)
		}
	}
}
