// Package sockinfo reads the kernel's information about a socket: about the connection of a TCP or MPTCP socket, and
// about the process at the other end of a Unix socket.
package sockinfo

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// TCPIsMPTCP is a socket option of IPPROTO_TCP (TCP_IS_MPTCP of linux/tcp.h). It is 1 for an MPTCP socket whose
// connection has not fallen back to TCP.
const TCPIsMPTCP = 43

// IsMultipath reports whether a connected socket speaks MPTCP, and has not fallen back to TCP.
func IsMultipath(fd int) bool {
	is, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, TCPIsMPTCP)
	return err == nil && is == 1
}

// AckedSYNData reports whether the peer has acknowledged the data in a socket's SYN (TCP Fast Open, RFC 7413).
func AckedSYNData(fd int) bool {
	const synData = 32 // TCPI_OPT_SYN_DATA of linux/tcp.h
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.Options&synData != 0
}

// SentAgain reports whether the kernel has retransmitted a packet of a socket.
func SentAgain(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.Total_retrans > 0
}

// Peer returns the process at the other end of a Unix socket, and its user (SO_PEERCRED). If the other end has listened,
// the process is the one that called listen, even if another one accepted.
func Peer(conn syscall.Conn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) {
		peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(err, asked)
}
