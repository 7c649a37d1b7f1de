package mptcpify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
)

// callerSocket is an MPTCP socket of a caller that is not connected.
type callerSocket struct {
	fd          int    // our duplicate
	cookie      uint64 // identifies it, and is never used again
	family      int
	only6       bool // does not reach IPv4-mapped addresses
	nonblocking bool
	bound       bool
	sendTimeout unix.Timeval
}

// errNotOurs means that the kernel continues the call.
var errNotOurs = errors.New("not a socket for a converter")

// callerSocket returns the socket of a connect() call. It fails for sockets that cannot or must not be led to a converter.
func (s *supervisor) callerSocket(n *notification) (callerSocket, error) {
	fd, err := s.callerFile(n)
	if err != nil {
		return callerSocket{}, err
	}
	sock, err := inspect(fd)
	if err != nil {
		unix.Close(fd)
	}
	return sock, err
}

func inspect(fd int) (sock callerSocket, err error) {
	option := func(level, name int) (value int) {
		if err == nil {
			value, err = unix.GetsockoptInt(fd, level, name)
		}
		return value
	}
	ours := option(unix.SOL_SOCKET, unix.SO_PROTOCOL) == unix.IPPROTO_MPTCP && isClosed(fd)
	if !ours {
		return sock, errors.Join(errNotOurs, err)
	}
	sock = callerSocket{fd: fd, family: option(unix.SOL_SOCKET, unix.SO_DOMAIN)}
	if sock.family == unix.AF_INET6 {
		sock.only6 = option(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) != 0
	}
	// A socket that is bound to an interface may not reach the relay or a converter. A socket with TCP_FASTOPEN_CONNECT
	// connects when it sends its first data, so it cannot send a Convert message first.
	ours = option(unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX) == 0 && option(unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT) == 0
	if err == nil {
		sock.cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	}
	var local netip.AddrPort
	if err == nil {
		local, err = localAddr(fd)
	}
	sock.bound = local.Port() != 0
	var timeout *unix.Timeval
	if err == nil {
		timeout, err = unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	}
	flags := 0
	if err == nil {
		sock.sendTimeout = *timeout
		flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	}
	sock.nonblocking = flags&unix.O_NONBLOCK != 0
	if err == nil && !ours {
		err = errNotOurs
	}
	return sock, err
}

// isClosed reports whether a TCP or MPTCP socket is neither connected, nor connecting, nor listening.
func isClosed(fd int) bool {
	const tcpClose = 7 // TCP_CLOSE of linux/tcp_states.h
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == tcpClose
}

// localAddr returns the address and port of a socket; port 0: it has none yet.
func localAddr(fd int) (netip.AddrPort, error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	local, ok := addrPortOf(name)
	if !ok {
		return netip.AddrPort{}, errNotOurs
	}
	return local, nil
}

// in reports whether the socket is in the network namespace with a cookie.
func (c callerSocket) in(namespace uint64) bool {
	own, err := unix.GetsockoptUint64(c.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return err == nil && own == namespace
}

// relay returns the relay's address of the server's family. It reports false if the socket cannot connect to it.
func (c callerSocket) relay(server netip.AddrPort, convert *ask.Convert) (netip.AddrPort, bool) {
	relay := convert.Relay4
	if server.Addr().Is6() {
		relay = convert.Relay6
	}
	_, ok := c.instead(server, relay)
	return relay, ok
}

// instead returns the form of address a with which this socket connects to it in place of its server. It reports false
// if the socket cannot connect to a, or could not connect to the server after being disconnected from a: after an IPv4
// address, an IPv6 socket reaches no IPv6 address any more. Linux then sends nothing, and connect() times out.
func (c callerSocket) instead(server, a netip.AddrPort) (unix.Sockaddr, bool) {
	if server.Addr().Is6() && a.Addr().Is4() {
		return nil, false
	}
	return c.sockaddr(a)
}

// sockaddr returns the form of address a with which this socket connects to it. It reports false if the socket cannot.
func (c callerSocket) sockaddr(a netip.AddrPort) (unix.Sockaddr, bool) {
	switch {
	case !a.IsValid():
	case c.family == unix.AF_INET && a.Addr().Is4():
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, true
	case c.family == unix.AF_INET6 && (a.Addr().Is6() || !c.only6):
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, true
	}
	return nil, false
}

// takes reports whether the kernel lets the socket connect to an address in the form that the program gave.
func (c callerSocket) takes(a netip.AddrPort) bool {
	_, reaches := c.sockaddr(unmapped(a))
	return reaches && a.Addr().Is4() == (c.family == unix.AF_INET)
}

// wildcard returns the address that stands for any address of a family.
func wildcard(family int) unix.Sockaddr {
	if family == unix.AF_INET6 {
		return &unix.SockaddrInet6{}
	}
	return &unix.SockaddrInet4{}
}

// disconnect returns a socket to the state in which it can be connected.
func disconnect(fd int) error {
	var unspec unix.RawSockaddr // AF_UNSPEC is 0
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), rawPointer(&unspec), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return os.NewSyscallError("connect(AF_UNSPEC)", errno)
	}
	return nil
}

func addrPortOf(name unix.Sockaddr) (netip.AddrPort, bool) {
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), true
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)), true
	}
	return netip.AddrPort{}, false
}

// decodeSockaddr returns the address in a struct sockaddr_in or sockaddr_in6.
func decodeSockaddr(raw []byte) (netip.AddrPort, bool) {
	if len(raw) < unix.SizeofSockaddrInet4 {
		return netip.AddrPort{}, false
	}
	port := binary.BigEndian.Uint16(raw[2:])
	switch binary.NativeEndian.Uint16(raw) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:])), port), true
	case unix.AF_INET6:
		if len(raw) >= unix.SizeofSockaddrInet6 {
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:])), port), true
		}
	}
	return netip.AddrPort{}, false
}

// encodeSockaddr returns a struct sockaddr_in or sockaddr_in6, for a socket of a family.
func encodeSockaddr(family int, a netip.AddrPort) []byte {
	if family == unix.AF_INET6 {
		raw := make([]byte, unix.SizeofSockaddrInet6)
		addr := a.Addr().As16()
		binary.NativeEndian.PutUint16(raw, unix.AF_INET6)
		binary.BigEndian.PutUint16(raw[2:], a.Port())
		copy(raw[8:], addr[:])
		return raw
	}
	raw := make([]byte, unix.SizeofSockaddrInet4)
	addr := a.Addr().As4()
	binary.NativeEndian.PutUint16(raw, unix.AF_INET)
	binary.BigEndian.PutUint16(raw[2:], a.Port())
	copy(raw[4:], addr[:])
	return raw
}

// callerFile returns a duplicate of the file whose number is a call's first argument. That needs the right to trace
// the caller: see doc.go.
func (s *supervisor) callerFile(n *notification) (int, error) {
	pidfd, err := unix.PidfdOpen(int(n.tid), unix.PIDFD_THREAD)
	if errors.Is(err, unix.EINVAL) { // before 6.9
		pidfd, err = pidfdOfLeader(n.tid)
	}
	if err != nil {
		return 0, err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, int(int32(n.args[0])), 0)
	if err != nil {
		return 0, err
	}
	if !stillWaits(s.listener, n.id) {
		unix.Close(fd)
		return 0, errGone
	}
	return fd, nil
}

// pidfdOfLeader returns a pidfd of a thread's process. It fails if the thread has its own table of descriptors.
func pidfdOfLeader(tid uint32) (int, error) {
	status, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status")
	if err != nil {
		return 0, err
	}
	leader, err := parseLeader(status)
	if err != nil {
		return 0, err
	}
	const files = 2 // KCMP_FILES of linux/kcmp.h
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(tid), uintptr(leader), files, 0, 0, 0)
	if errno != 0 {
		return 0, os.NewSyscallError("kcmp", errno)
	}
	if differ != 0 {
		return 0, fmt.Errorf("thread %d has files of its own", tid)
	}
	return unix.PidfdOpen(leader, 0)
}
