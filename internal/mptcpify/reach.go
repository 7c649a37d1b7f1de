package mptcpify

import (
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/kernel/sockinfo"
)

// reach connects a socket to a converter and sends a request, at most until a time. If fast is set, the request may be in
// the SYN, and how says what was learned about that; 0: nothing. began is the time at which the successful attempt began.
func reach(sock callerSocket, converter unix.Sockaddr, request []byte, fast bool, until time.Time) (began time.Time, how ask.FastOpen, err error) {
	limit := timeLeft(until)
	if err := unix.SetsockoptTimeval(sock.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return began, 0, err
	}
	if fast {
		began = time.Now()
		how, err = openFast(sock.fd, converter, request)
		if !errors.Is(err, errSYNData) {
			return began, how, err
		}
		if err := undo(sock.fd, timeLeft(until)); err != nil {
			return began, 0, err
		}
		how = ask.FastOpenFailed
	}
	began = time.Now()
	if err := finish(sock.fd, converter, request); err != nil {
		return began, 0, err // perhaps not because of the SYN's data
	}
	return began, how, nil
}

// timeLeft returns the time until a deadline, for a socket option. It is at least a millisecond, because 0 means no limit.
func timeLeft(until time.Time) unix.Timeval {
	return unix.NsecToTimeval(max(time.Until(until), time.Millisecond).Nanoseconds())
}

// errSYNData means that a connection failed or fell back to TCP, perhaps because of the data in its SYN.
var errSYNData = errors.New("the data in the SYN was not acknowledged, or the connection fell back to TCP")

// openFast connects a socket with the request in the SYN (TCP Fast Open), if the kernel has a cookie of the converter.
// Otherwise the SYN asks for a cookie, and the request follows after the handshake.
func openFast(fd int, converter unix.Sockaddr, request []byte) (how ask.FastOpen, err error) {
	// The call does not wait, because the kernel does not repeat it after a signal.
	inSYN, err := unix.SendmsgN(fd, request, nil, converter, unix.MSG_FASTOPEN|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	if err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EOPNOTSUPP) {
		return 0, err
	}
	if inSYN <= 0 {
		if err = finish(fd, converter, request); err == nil && sockinfo.SentAgain(fd) { // without TFO's option
			how = ask.FastOpenFailed
		}
		return how, err
	}
	err = finish(fd, converter, request[inSYN:])
	switch {
	case errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.EALREADY), errors.Is(err, unix.EAGAIN): // timed out, also without data
		return ask.FastOpenSilent, err
	case err != nil || !sockinfo.AckedSYNData(fd) || !sockinfo.IsMultipath(fd):
		return 0, errSYNData
	}
	return ask.FastOpenWorked, nil
}

// finish connects the socket if it is not connected yet, waits for that, and sends the rest of the request.
func finish(fd int, converter unix.Sockaddr, rest []byte) error {
	if err := retry(func() error { return unix.Connect(fd, converter) }); err != nil {
		return err
	}
	if len(rest) == 0 {
		return nil
	}
	// The rest fits into the buffer of a new connection.
	n, err := unix.SendmsgN(fd, rest, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	if err == nil && n != len(rest) {
		err = io.ErrShortWrite
	}
	return err
}
