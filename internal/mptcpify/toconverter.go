package mptcpify

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

const (
	// converterTimeout bounds the time for connecting to a converter and for the converter's connecting to the server.
	// The relay uses the same.
	converterTimeout = 2 * time.Second
	// fairTimeout is the least time after which a converter that has not answered counts as silent. A program's own
	// limit may leave less.
	fairTimeout = converterTimeout / 2
	// convertersTimeout bounds the time in which one converter after the other is tried.
	convertersTimeout = 2 * converterTimeout
	// lookAfter is the interval at which the supervisor checks that the caller still waits.
	lookAfter = 250 * time.Millisecond
)

// toConverter connects a blocking socket to a converter and asks it to connect to the server. If a converter fails, the
// relay names the next one. If all fail, the socket connects directly. began is the time of the program's connect().
func (s *supervisor) toConverter(l *lead, sock callerSocket, server netip.AddrPort, convert *ask.Convert, began time.Time) {
	l.touch(sock.sendTimeout)
	until := began.Add(patience(time.Duration(sock.sendTimeout.Nano())))
	var tried []netip.AddrPort
	for convert != nil && convert.Converter.IsValid() && !slices.Contains(tried, convert.Converter) && time.Now().Before(until) {
		tried = append(tried, convert.Converter)
		a, err := s.through(l, sock, server, convert, until)
		another := s.report(convert.Converter, server, a, err)
		if err == nil && unix.SetsockoptTimeval(sock.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &sock.sendTimeout) == nil {
			s.shared.addPeer(s.side, sock.cookie, server, convert.Converter, monotonic())
			_ = answerResult(s.listener, l.call.id, 0)
			return
		}
		convert = nil
		if another && undo(sock.fd, sock.sendTimeout) == nil {
			convert = s.converting.relay.Ask(server).Convert
		}
	}
	if sock.sendTimeout.Nano() == 0 {
		s.goOn(l, sock.fd)
		return
	}
	s.directly(l, sock, server, began)
}

// directly connects a socket to its server within the rest of the program's own limit. The kernel's connect() would
// wait for the whole limit again.
func (s *supervisor) directly(l *lead, sock callerSocket, server netip.AddrPort, began time.Time) {
	to, ok := sock.sockaddr(server)
	until := began.Add(time.Duration(sock.sendTimeout.Nano()))
	if !ok || undo(sock.fd, timeLeft(until)) != nil {
		s.goOn(l, sock.fd)
		return
	}
	err := retry(func() error { return unix.Connect(sock.fd, to) })
	if errors.Is(err, unix.EALREADY) { // the limit was reached after a signal of this process
		err = unix.EINPROGRESS
	}
	if failed := unix.SetsockoptTimeval(sock.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &sock.sendTimeout); err == nil {
		err = failed
	}
	errno, _ := errors.AsType[unix.Errno](err)
	_ = answerResult(s.listener, l.call.id, errno)
}

// attempt is a connection to a converter, and the converter's answer.
type attempt struct {
	began, up time.Time // when the connection was begun, and when it was up; zero: it never was
	fast      ask.FastOpen
	answer    rfc8803.Message
	local     netip.AddrPort // this host's end, once the converter has answered; zero: unknown
}

// through connects to a converter, names the server, and returns the converter's answer. It waits at most until a time.
// The data after the answer stays in the socket, for the program.
func (s *supervisor) through(l *lead, sock callerSocket, server netip.AddrPort, convert *ask.Convert, until time.Time) (a attempt, err error) {
	target, ok := sock.instead(server, convert.Converter)
	if !ok {
		return a, errGone
	}
	allowed := min(time.Until(until), converterTimeout)
	until = time.Now().Add(allowed)
	request, err := rfc8803.Message{Connect: &rfc8803.Connect{Server: server}, Cookie: convert.Cookie}.Append(nil)
	if err != nil {
		return a, err
	}
	a.began, a.fast, err = reach(sock, target, request, convert.FastOpen, until)
	if err == nil || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) { // reset when it was up
		a.up = time.Now()
	}
	if err == nil {
		a.answer, err = s.hear(l, sock.fd, until)
	}
	if err == nil {
		a.local, _ = localAddr(sock.fd) // without it, the status does not name the connection's server
	}
	if allowed < fairTimeout && isTimeout(err) {
		err = errHasty
	}
	return a, err
}

// isTimeout reports whether an attempt timed out.
func isTimeout(err error) bool {
	return errors.Is(err, errSilent) || errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EAGAIN)
}

// report tells the relay how an attempt ended, and what it showed about the server. err is the reason if the server was
// not reached. another reports whether another converter may be tried.
func (s *supervisor) report(converter, server netip.AddrPort, a attempt, err error) (another bool) {
	relay, waited := s.converting.relay, time.Since(a.up)
	refused, answered := errors.AsType[*rfc8803.Error](err)
	if answered = answered || err == nil; a.fast == ask.FastOpenWorked && !answered {
		a.fast = ask.FastOpenSilent
	}
	if a.fast != 0 {
		relay.FastOpened(converter, a.fast)
	}
	switch {
	case err == nil:
		if a.fast == ask.FastOpenWorked {
			waited = 0 // the answer waited for the handshake, and does not show how far the server is
		}
		relay.Carried(a.local, converter, server, a.up.Sub(a.began), waited)
		if a.answer.ExtendedHeader != nil {
			if speaks, err := rfc8803.HasMPCapable(a.answer.ExtendedHeader); err == nil {
				relay.Learned(server, speaks)
			}
		}
		return false
	case refused != nil && refused.ConcernsServer(), errors.Is(err, errGone):
		// The converter's rules may forbid the server, or its network may not reach it. The direct connection shows the
		// program the server's own answer.
		return false
	case errors.Is(err, errHasty):
		relay.Suspect(converter)
		return false
	case errors.Is(err, errSilent):
		// The direct connection shows the program the server's own answer.
		relay.Unserved(converter, server)
		return false
	case a.up.IsZero():
		relay.Unserved(converter, server) // so that the relay names another one
		return !isTimeout(err)            // else the program has waited enough, and connects directly
	default:
		relay.Refused(converter, server)
	}
	return true
}

var (
	errSilent = errors.New("the converter does not answer in time")
	errHasty  = errors.New("the converter had little time to answer")
	errGone   = errors.New("the caller does not wait any more, or its socket cannot reach the converter")
)

// hear reads the converter's answer.
func (s *supervisor) hear(l *lead, fd int, until time.Time) (m rfc8803.Message, err error) {
	answer := make([]byte, rfc8803.HeaderLen, rfc8803.MaxLen)
	if err := s.receiveFull(l, fd, answer, until); err != nil {
		return m, err
	}
	length, err := rfc8803.Len(answer)
	if err != nil {
		return m, err
	}
	answer = answer[:length]
	if err := s.receiveFull(l, fd, answer[rfc8803.HeaderLen:], until); err != nil {
		return m, err
	}
	m, _, err = rfc8803.Decode(answer)
	if errors.As(err, new(rfc8803.UnknownError)) {
		err = nil // TLVs of a later version are ignored
	}
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return m, err
}

// patience returns the time that connecting through converters may take. sendTimeout is the program's own limit for
// connect() (SO_SNDTIMEO); 0: none. At most half of that is used, and the rest is left for a direct connection.
func patience(sendTimeout time.Duration) time.Duration {
	if sendTimeout == 0 {
		return convertersTimeout
	}
	return min(convertersTimeout, sendTimeout/2)
}

// receiveFull fills b, and reads no further byte from the socket.
func (s *supervisor) receiveFull(l *lead, fd int, b []byte, deadline time.Time) error {
	for len(b) > 0 {
		n := 0
		err := retry(func() (err error) {
			n, _, err = unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
			return err
		})
		switch {
		case errors.Is(err, unix.EAGAIN):
			if err := s.awaitInput(l, fd, deadline); err != nil {
				return err
			}
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		b = b[max(n, 0):]
	}
	return nil
}

func (s *supervisor) awaitInput(l *lead, fd int, deadline time.Time) error {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, min(int(lookAfter.Milliseconds()), remaining(deadline)))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case n > 0:
			return nil
		case remaining(deadline) == 0:
			return errSilent
		case !stillWaits(s.listener, l.call.id):
			return errGone
		}
	}
}
