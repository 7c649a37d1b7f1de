package engine

import (
	"errors"

	"golang.org/x/sys/unix"
)

// fastOpen begins to connect a socket, and returns the number of bytes of b that are in the SYN. If the kernel has no
// cookie of the other side, it returns 0, and the SYN asks for a cookie.
func fastOpen(fd int, b []byte, to unix.Sockaddr) (n int, err error) {
	n, err = unix.SendmsgN(fd, b, nil, to, unix.MSG_FASTOPEN|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EOPNOTSUPP) { // the sysctl net.ipv4.tcp_fastopen has it off
		return 0, unix.Connect(fd, to)
	}
	return max(n, 0), err
}
