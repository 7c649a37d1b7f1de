package engine

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/sockinfo"
)

// dial starts connecting to a server, and closes the connection to the previous one.
func (l *loop) dial(p *pair, d *Dial) {
	l.hangUp(p)
	o, due := p.opening, time.Time{}
	p.mark = d.Mark
	o.dial, o.began, o.up, o.said, o.early, o.again, o.plain, o.fast = d, time.Now(), time.Time{}, nil, 0, false, false, FastOpenUnknown
	if d.Timeout > 0 {
		due = o.began.Add(d.Timeout)
	}
	l.due.Set(&o.due, due)
	if l.engine.config.RefuseFull && l.shares().isFull(d.Mark) {
		l.dialled(p, unix.ENOBUFS)
		return
	}
	l.connect(p, d)
}

// dialAgain connects to the same server by TCP. The Dial's timeout continues.
func (l *loop) dialAgain(p *pair) {
	l.hangUp(p)
	o := p.opening
	o.began, o.again = time.Now(), true
	d := *o.dial
	d.MPTCP, d.FastOpen = false, false
	l.connect(p, &d)
}

// dialSlowly connects to the same server without data in the SYN.
func (l *loop) dialSlowly(p *pair) {
	l.hangUp(p)
	o := p.opening
	o.began, o.fast = time.Now(), FastOpenFailed
	if o.dial.Timeout > 0 {
		l.due.Set(&o.due, o.began.Add(o.dial.Timeout))
	}
	d := *o.dial
	d.FastOpen = false
	l.connect(p, &d)
}

// connect starts connecting a socket to the server.
func (l *loop) connect(p *pair, d *Dial) {
	fd, inSYN, err := connect(d)
	if err != nil && lacks(errnoOf(err)) {
		l.starve(errnoOf(err))
		if l.spendSpare() {
			fd, inSYN, err = connect(d)
		}
	}
	p.opening.inSYN = inSYN
	if err != nil {
		l.dialled(p, errnoOf(err))
		return
	}
	if err := l.add(p, &p.server, fd, protocolOf(d.MPTCP)); err != nil {
		l.starve(errnoOf(err))
		l.refuse(p)
		return
	}
	l.settleLater(p)
}

// hangUp closes the present connection to a server.
func (l *loop) hangUp(p *pair) {
	if fd := p.server.fd; fd >= 0 {
		l.ends[fd] = nil
		resetSocket(int(fd))
		p.server.fd = -1
	}
}

// connected continues the opening if the server has answered.
func (l *loop) connected(p *pair, events uint32) {
	o, fd := p.opening, int(p.server.fd)
	errno := syscall.Errno(0)
	if o.dial.FastOpen || events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 { // otherwise a writable socket is connected
		errno = connectError(fd)
	}
	if errno == unix.EAGAIN { // a socket with data in its SYN may be writable before it is connected
		return
	}
	asked := errno == 0 && o.dial.MPTCP && !o.again
	o.multipath = asked && isMultipath(fd)
	if asked {
		o.plain = !o.multipath && !sockinfo.SentAgain(fd) && offered(fd, o.dial.To)
	}
	switch {
	case o.inSYN > 0 && (errno != 0 || !sockinfo.AckedSYNData(fd) || o.dial.MPTCP && !o.multipath):
		l.dialSlowly(p)
		return
	case errno != 0:
		l.dialled(p, errno)
		return
	}
	if o.dial.FastOpen && o.fast == FastOpenUnknown {
		switch {
		case o.inSYN > 0:
			o.fast = FastOpenAcked
		case sockinfo.SentAgain(fd): // the SYN was sent again without TFO's option
			o.fast = FastOpenFailed
		}
	}
	if o.dial.MPTCP && o.dial.NoFallback && !o.again && !o.multipath {
		l.dialAgain(p)
		return
	}
	o.up = time.Now()
	if o.dial.EarlyTimeout > 0 && !l.hearEarly(p) {
		return
	}
	if len(o.dial.Greeting) > 0 {
		if errno := l.greet(p); errno != 0 {
			l.dialled(p, errno)
			return
		}
	}
	if o.dial.Await == nil {
		l.dialled(p, 0)
	}
}

// hearEarly reads the client's bytes so far. It reports whether the pair continues.
func (l *loop) hearEarly(p *pair) bool {
	o := p.opening
	room := earlyMost - len(o.heard)
	if room <= 0 || p.client.is&isEmpty != 0 {
		return true
	}
	n, errno := read(int(p.client.fd), l.buffer[:room])
	switch {
	case errno == unix.EAGAIN:
	case errno != 0:
		l.refuse(p)
		return false
	case n > 0: // 0 at the end of the client's data, which is read again later
		p.client.wasRead(n, room)
		o.heard = append(o.heard, l.buffer[:n]...)
	}
	return true
}

// greet sends the greeting, and after it the client's bytes if the Dial has an EarlyTimeout.
func (l *loop) greet(p *pair) syscall.Errno {
	o, b := p.opening, p.opening.dial.Greeting
	if o.dial.EarlyTimeout > 0 {
		b = slices.Concat(b, o.heard[:min(len(o.heard), earlyMost)])
	}
	n := o.inSYN
	if n < len(b) {
		// The socket's buffer is empty, so that a greeting always fits.
		l.startWrite(&p.server)
		more, errno := write(int(p.server.fd), b[n:])
		if errno != 0 {
			return errno
		}
		n += more
	}
	if n < len(o.dial.Greeting) {
		return unix.ENOBUFS
	}
	if o.early = n - len(o.dial.Greeting); o.early > 0 {
		l.due.Set(&o.due, o.up.Add(o.dial.EarlyTimeout))
	}
	return 0
}

// await passes the other side's first bytes to the Dial's Await.
func (l *loop) await(p *pair) {
	for p.server.is&isEmpty == 0 {
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
		p.server.wasRead(n, openingMost)
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

// dialled passes the result of connecting to the opening, and takes the Step that it returns.
func (l *loop) dialled(p *pair, errno syscall.Errno) {
	o := p.opening
	l.due.Set(&o.due, time.Time{})
	r := Result{Errno: errno, Connected: !o.up.IsZero(), Early: o.early > 0}
	if r.Connected {
		r.Handshake, r.Answer = o.up.Sub(o.began), time.Since(o.up)
		r.MPTCP, r.Plain, r.FastOpen = o.multipath, o.plain, o.fast
	}
	if errno == 0 && o.dial.Await != nil {
		r.Local, _ = localAddr(int(p.server.fd)) // an error leaves the zero value
	}
	if !r.Connected && errno == unix.ETIMEDOUT && o.inSYN > 0 {
		r.FastOpen = FastOpenUnanswered
	}
	s := o.front.Dialled(r)
	l.step(p, s)
	switch {
	case p.closed || s.Dial != nil || s.Close:
	case errno != 0:
		l.refuse(p)
	default:
		l.join(p)
	}
}

// offered reports whether a connection that fell back to TCP began with an offer of MPTCP. If that is not known, it did not.
func offered(fd int, to netip.AddrPort) bool {
	local, errno := localAddr(fd)
	if errno != nil {
		return false
	}
	is, err := mptcp.Offered(local, to)
	return err == nil && is
}

// isMultipath reports whether an accepted connection is MPTCP, and did not fall back to TCP.
func isMultipath(fd int) bool {
	is, errno := intOption(fd, unix.IPPROTO_TCP, sockinfo.TCPIsMPTCP)
	return errno == 0 && is == 1
}
