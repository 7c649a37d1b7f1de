package mptcpify

import (
	"errors"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// Limits of a connection to a converter. The converter's answer includes the time in which it connects to the server:
// SYNs that are lost three times in a row.
const (
	converterTimeout = 2 * time.Second
	answerTimeout    = 10 * time.Second
	// lookAfter is how often to check that the caller lives.
	lookAfter = 250 * time.Millisecond
)

// toConverter connects a blocking socket to the converter and has the converter connect to the server.
func (s *supervisor) toConverter(l *lead, sock callerSocket, server netip.AddrPort, convert *ask.Convert) {
	target, ok := sock.sockaddr(convert.Converter)
	if !ok {
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	l.touch(sock.sendTimeout)
	answer, err := s.converse(l, sock, target, server, convert.Cookie)
	if err == nil {
		err = unix.SetsockoptTimeval(sock.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &sock.sendTimeout)
	}
	if err != nil {
		s.giveUp(l, sock.fd, convert.Converter, err)
		return
	}
	if answer.ExtendedHeader != nil {
		speaks, _ := rfc8803.HasMPCapable(answer.ExtendedHeader)
		s.converting.relay.Learned(server, speaks)
	}
	s.shared.addPeer(s.side, sock.cookie, server, convert.Converter, monotonic())
	_ = answerResult(s.listener, l.call.id, 0)
}

// giveUp answers a call whose converter did not connect to the server.
func (s *supervisor) giveUp(l *lead, fd int, converter netip.AddrPort, err error) {
	if refused, ok := errors.AsType[*rfc8803.Error](err); ok && refused.ConcernsServer() {
		// The converter's rules may forbid the server, or its network may not reach it. What the server
		// itself says comes by the direct path.
		s.goOn(l, fd)
		return
	}
	if !errors.Is(err, errGone) {
		s.converting.relay.Failed(converter, failureOf(err))
	}
	s.goOn(l, fd)
}

func failureOf(err error) ask.Failure {
	refused, _ := errors.AsType[*rfc8803.Error](err)
	switch {
	case refused != nil && refused.Code == rfc8803.ResourceExceeded:
		return ask.Busy
	case errors.Is(err, errSilent):
		return ask.Silent
	case errors.Is(err, rfc8803.ErrMalformed), errors.As(err, new(rfc8803.VersionError)):
		return ask.Malformed
	case refused != nil, errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET):
		return ask.Refused
	}
	return ask.Unreachable
}

var (
	errSilent = errors.New("the converter does not answer in time")
	errGone   = errors.New("the caller does not wait any more")
)

// converse connects to the converter, names the server and returns the converter's answer, if that is not an error.
// What follows the answer stays in the socket, for the program.
func (s *supervisor) converse(l *lead, sock callerSocket, converter unix.Sockaddr, server netip.AddrPort, cookie []byte) (m rfc8803.Message, err error) {
	request, err := rfc8803.Message{Connect: &rfc8803.Connect{Server: server}, Cookie: cookie}.Append(nil)
	if err != nil {
		return m, err
	}
	toConnect, toAnswer := patience(time.Duration(sock.sendTimeout.Nano()))
	limit := unix.NsecToTimeval(int64(toConnect))
	if err := unix.SetsockoptTimeval(sock.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return m, err
	}
	if err := retry(func() error { return unix.Connect(sock.fd, converter) }); err != nil {
		return m, err
	}
	// It fits into the buffer of a new connection.
	n, err := unix.SendmsgN(sock.fd, request, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	if err != nil {
		return m, err
	}
	if n != len(request) {
		return m, io.ErrShortWrite
	}
	deadline := time.Now().Add(toAnswer)
	answer := make([]byte, rfc8803.HeaderLen, rfc8803.MaxLen)
	if err := s.receiveFull(l, sock.fd, answer, deadline); err != nil {
		return m, err
	}
	length, err := rfc8803.Len(answer)
	if err != nil {
		return m, err
	}
	answer = answer[:length]
	if err := s.receiveFull(l, sock.fd, answer[rfc8803.HeaderLen:], deadline); err != nil {
		return m, err
	}
	m, _, err = rfc8803.Decode(answer)
	if errors.As(err, new(rfc8803.UnknownError)) {
		err = nil // of a later version; what is known suffices
	}
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return m, err
}

// patience returns how long connecting to a converter and its answer may take. If the program limits connect() itself
// (SO_SNDTIMEO; 0 if not), they take at most half of that, because the way to the server may follow.
func patience(sendTimeout time.Duration) (toConnect, toAnswer time.Duration) {
	if sendTimeout == 0 {
		return converterTimeout, answerTimeout
	}
	return max(time.Millisecond, min(converterTimeout, sendTimeout/4)), min(answerTimeout, sendTimeout/4)
}

// receiveFull fills b, and takes no byte more from the socket.
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
