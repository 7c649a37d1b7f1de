package engine

import (
	"container/list"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openingMost bounds what a client, or the other side of a Dial, may say before the connection is open.
const openingMost = 16 << 10

// opening is a pair's state until its server is reached.
type opening struct {
	front Opening
	dial  *Dial         // nil: the server is not known yet
	up    bool          // connected to it
	heard []byte        // by the client, not used yet
	said  []byte        // by the server, not used yet
	until time.Time     // zero: no limit
	place *list.Element // in loop.openings
}

// open begins a pair with a connection that has come in.
func (l *loop) open(fd int, peer netip.AddrPort) {
	local, err := localAddr(fd)
	if err == nil {
		err = prepare(fd)
	}
	var front Opening
	if err == nil {
		front, err = l.engine.config.Front.Open(Accepted{Peer: peer, Local: local})
	}
	if err != nil {
		l.refused.Add(1)
		resetSocket(fd)
		return
	}
	p := &pair{opening: &opening{front: front, until: time.Now().Add(l.engine.config.OpeningTimeout)}}
	p.server.fd = -1
	l.pairs++
	l.engine.pairs.Add(1)
	l.openings.add(p)
	if err := l.add(p, &p.client, fd, isMultipath(fd)); err != nil {
		l.refuse(p)
		return
	}
	l.step(p, front.Read(nil))
}

// openEvent handles events of a pair that is not open yet.
func (l *loop) openEvent(e *end, events uint32) {
	p := e.pair
	if e == &p.client {
		l.hear(p)
		return
	}
	if o := p.opening; !o.up && events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		if errno := connectError(int(e.fd)); errno != 0 {
			l.dialled(p, errno)
			return
		}
		o.up = true
		if len(o.dial.Greeting) > 0 {
			// The socket's buffer is empty, so that this much always fits.
			if n, errno := write(int(e.fd), o.dial.Greeting); errno != 0 || n != len(o.dial.Greeting) {
				l.dialled(p, errno)
				return
			}
		}
		if o.dial.Await == nil {
			l.dialled(p, 0)
			return
		}
	}
	if p.opening != nil && p.opening.up {
		l.await(p)
	}
}

// hear reads what the client says before its server is known. Later bytes stay in the socket.
func (l *loop) hear(p *pair) {
	for !p.closed && p.opening != nil && p.opening.dial == nil {
		o := p.opening
		n, errno := read(int(p.client.fd), l.buffer[:openingMost])
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0 || n == 0 || len(o.heard)+n > openingMost:
			l.refuse(p)
			return
		}
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
	case s.Close:
		l.refused.Add(1)
		l.finish(p)
	case s.Dial != nil:
		l.openings.remove(p)
		o.dial, o.until = s.Dial, time.Time{}
		fd, err := connect(s.Dial)
		if err != nil {
			l.dialled(p, errnoOf(err))
			return
		}
		if err := l.add(p, &p.server, fd, s.Dial.MPTCP); err != nil {
			l.refuse(p)
		}
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

// await reads what the other side says before it is the server.
func (l *loop) await(p *pair) {
	for {
		o := p.opening
		n, errno := read(int(p.server.fd), l.buffer[:openingMost])
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			l.dialled(p, errno)
			return
		case n == 0:
			l.dialled(p, unix.ECONNRESET)
			return
		case len(o.said)+n > openingMost:
			l.refuse(p)
			return
		}
		o.said = append(o.said, l.buffer[:n]...)
		used, done, errno := o.dial.Await(o.said)
		if errno != 0 {
			l.dialled(p, errno)
			return
		}
		if done {
			o.said = o.said[min(used, len(o.said)):]
			l.dialled(p, 0)
			return
		}
	}
}

// dialled opens the pair, or ends it because its server cannot be reached.
func (l *loop) dialled(p *pair, errno syscall.Errno) {
	o := p.opening
	reply, goOn := o.front.Dialled(errno)
	if len(reply) > 0 && !l.reply(p, reply) {
		return
	}
	if !goOn {
		l.refused.Add(1)
		if len(reply) > 0 {
			l.finish(p)
		} else {
			l.reset(p)
		}
		return
	}
	p.opening = nil
	for _, waits := range []struct {
		e *end
		b []byte
	}{{&p.client, o.heard}, {&p.server, o.said}} {
		if len(waits.b) > 0 {
			waits.e.rest = waits.b
			l.waiting.Add(int64(len(waits.b)))
		}
		l.move(waits.e)
	}
}

// refuse ends a pair that does not open.
func (l *loop) refuse(p *pair) {
	l.refused.Add(1)
	l.reset(p)
}

func (l *loop) endLateOpenings(now time.Time) {
	for {
		first := l.openings.first()
		if first == nil || now.Before(first.opening.until) {
			return
		}
		l.refuse(first)
	}
}

// queue has the pairs whose client has not said yet which server it wants. All get the same time, so the
// first of them is the first whose time is up.
type queue struct{ list list.List }

func (q *queue) add(p *pair) { p.opening.place = q.list.PushBack(p) }

func (q *queue) remove(p *pair) {
	if p.opening.place != nil {
		q.list.Remove(p.opening.place)
		p.opening.place = nil
	}
}

// first returns the pair that has waited longest, or nil.
func (q *queue) first() *pair {
	if e := q.list.Front(); e != nil {
		return e.Value.(*pair)
	}
	return nil
}

// isMultipath reports whether an accepted connection is MPTCP, and did not fall back to TCP.
func isMultipath(fd int) bool {
	is, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, tcpIsMPTCP)
	return err == nil && is == 1
}

const tcpIsMPTCP = 43 // TCP_IS_MPTCP of linux/tcp.h
