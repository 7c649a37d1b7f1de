package engine

import (
	"errors"

	"golang.org/x/sys/unix"
)

// fastOpen begins to connect a socket, and returns how many bytes of b are in the SYN. Without a cookie of the other side
// these are none, and the SYN asks for one.
func fastOpen(fd int, b []byte, to unix.Sockaddr) (n int, err error) {
	n, err = unix.SendmsgN(fd, b, nil, to, unix.MSG_FASTOPEN|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EOPNOTSUPP) { // the sysctl net.ipv4.tcp_fastopen has it off
		return 0, unix.Connect(fd, to)
	}
	return max(n, 0), err
}
