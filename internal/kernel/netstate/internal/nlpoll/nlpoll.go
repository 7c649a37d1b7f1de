// Package nlpoll reports whether a netlink socket has something to read. Package netlink cannot do that without
// waiting. Only netstate and the packages below it may import it.
package nlpoll

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Readable reports whether the socket has a message or an error to read.
func Readable(conn *netlink.Conn) (bool, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	var n int
	var pollErr error
	err = raw.Control(func(fd uintptr) {
		for {
			n, pollErr = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(pollErr, unix.EINTR) {
				return
			}
		}
	})
	return n > 0, errors.Join(err, pollErr)
}
