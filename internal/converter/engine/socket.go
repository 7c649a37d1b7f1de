package engine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spareDescriptors are for listeners, epoll and the rest of the process.
const spareDescriptors = 64

func descriptorLimit() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // Linux' default
	}
	return limit.Cur
}

// connect starts connecting a new socket. inSYN is the number of bytes of the greeting in the SYN. Errors are those
// that a program would see.
func connect(d *Dial) (fd, inSYN int, err error) {
	family, sa := sockaddr(d.To)
	protocol := unix.IPPROTO_TCP
	if d.MPTCP {
		protocol = unix.IPPROTO_MPTCP
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, 0, err
	}
	if d.Mark != 0 {
		err = setOption(fd, unix.SOL_SOCKET, unix.SO_MARK, int32(d.Mark))
	}
	if err == nil {
		err = resetUnlessDone(fd)
	}
	if err == nil && d.From.IsValid() {
		err = callFrom(fd, d.From)
	}
	if err == nil && d.Local.IsValid() {
		_, local := sockaddr(netip.AddrPortFrom(d.Local, 0))
		err = unix.Bind(fd, local)
	}
	if err == nil {
		if d.FastOpen {
			inSYN, err = fastOpen(fd, d.Greeting, sa)
		} else {
			err = unix.Connect(fd, sa)
		}
		if errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, 0, err
	}
	return fd, inSYN, nil
}

// The ports of calls from another host's address. Most systems take those of their own connections from above, so that
// there are no two connections with the same addresses and ports.
const (
	foreignPortFirst = 16384
	foreignPorts     = 16384
	foreignPortTries = 20
)

// callFrom gives a socket an address that need not be this host's.
func callFrom(fd int, from netip.AddrPort) error {
	family, _ := sockaddr(from)
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if family == unix.AF_INET6 {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return err
	}
	var err error
	for range foreignPortTries {
		to := from
		if from.Port() == 0 {
			to = netip.AddrPortFrom(from.Addr(), foreignPortFirst+rand.N[uint16](foreignPorts))
		}
		_, sa := sockaddr(to)
		if err = unix.Bind(fd, sa); !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return err
}

func sockaddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	if addr := a.Addr().Unmap(); addr.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: addr.As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// keepIdle is after how many seconds of silence an end is asked whether it is still there, so that
// connections whose end has vanished do not stay for ever.
const keepIdle = 600

// prepare sets options on a listener, which its connections inherit. The ends to servers get these options only when
// they need them.
func prepare(fd int) error { return cmp.Or(resetUnlessDone(fd), sendAtOnce(fd), keepAlive(fd)) }

// resetUnlessDone makes the kernel reset an end that is closed before it is done, even if the kernel closes it because
// the process died.
func resetUnlessDone(fd int) error {
	return setOption(fd, unix.SOL_SOCKET, unix.SO_LINGER, unix.Linger{Onoff: 1})
}

// sendAtOnce lets a socket send small packets without waiting for acknowledgements. Whoever sent the bytes has gathered
// them already.
func sendAtOnce(fd int) error { return setOption(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, int32(1)) }

// keepUrgent makes reads return urgent bytes (MSG_OOB) at their place among the others. MPTCP sockets always do that, and
// lack the option.
func keepUrgent(fd int) { _ = setOption(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, int32(1)) }

// keepAlive makes the kernel probe an idle connection, so that it ends if the other side has vanished.
func keepAlive(fd int) error {
	return cmp.Or(
		setOption(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, int32(1)),
		setOption(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int32(keepIdle)),
	)
}

// buffer returns the size of one of a socket's two buffers (SO_RCVBUF, SO_SNDBUF), as the kernel counts it.
func buffer(fd, which int) int {
	size, _ := intOption(fd, unix.SOL_SOCKET, which)
	return size
}

// setBuffer sets the size of one of a socket's two buffers. Linux chooses it no more. Without CAP_NET_ADMIN nothing
// happens, because the size that a process may set (rmem_max, wmem_max) is too small for fast connections.
func setBuffer(fd, which, size int) {
	option := unix.SO_RCVBUFFORCE
	if which == unix.SO_SNDBUF {
		option = unix.SO_SNDBUFFORCE
	}
	_ = setOption(fd, unix.SOL_SOCKET, option, int32(size/2)) // the kernel doubles it
}

// clampWindow bounds the bytes that a TCP socket lets its sender have under way.
func clampWindow(fd, bytes int) {
	_ = setOption(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, int32(bytes))
}

// queued returns the number of bytes that a socket holds: SIOCINQ, or SIOCOUTQ.
func queued(fd int, which uintptr) int {
	var n int32
	_, _ = raw(unix.SYS_IOCTL, uintptr(fd), which, uintptr(unsafe.Pointer(&n)), 0, 0, 0)
	return int(n)
}

// setOption sets an option of a socket.
func setOption[T int32 | unix.Linger](fd, level, option int, value T) error {
	if _, errno := raw(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0); errno != 0 {
		return errno
	}
	return nil
}

// intOption returns the value of an option of a socket.
func intOption(fd, level, option int) (value int, errno syscall.Errno) {
	var got int32
	size := uint32(unsafe.Sizeof(got))
	_, errno = raw(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&got)), uintptr(unsafe.Pointer(&size)), 0)
	return int(got), errno
}

// sockets are the calls by which the bytes of a pair are moved, and its ends closed.
type sockets interface {
	read(fd int, b []byte) (int, syscall.Errno)
	write(fd int, b []byte) (int, syscall.Errno)
	// splice moves at most n bytes between a socket and a pipe.
	splice(from, to, n int) (int, syscall.Errno)
	// writable reports whether a socket takes more bytes now. If not, an event reports when it does.
	writable(fd int) bool
	// sendAtOnce makes a socket send small packets without waiting for acknowledgements.
	sendAtOnce(fd int)
	// keepUrgent has a socket's urgent bytes read at their place among the others.
	keepUrgent(fd int)
	// buffer returns the size of one of a socket's two buffers (SO_RCVBUF, SO_SNDBUF), as the kernel counts it.
	buffer(fd, which int) int
	// setBuffer sets it for good.
	setBuffer(fd, which, size int)
	// clampWindow bounds the bytes that a TCP socket lets its sender have under way.
	clampWindow(fd, bytes int)
	// unread returns the number of bytes that have arrived, and unsent the number of those that the other side has not
	// acknowledged.
	unread(fd int) int
	unsent(fd int) int
	// failed reports whether a connected socket is not connected any more.
	failed(fd int) bool
	// shutdown sends the end of the stream.
	shutdown(fd int) error
	// close closes a socket whose data is all written; the kernel delivers it.
	close(fd int)
	// reset closes a socket with a reset.
	reset(fd int)
}

// kernel implements sockets.
type kernel struct{}

func (kernel) read(fd int, b []byte) (int, syscall.Errno)  { return read(fd, b) }
func (kernel) write(fd int, b []byte) (int, syscall.Errno) { return write(fd, b) }
func (kernel) splice(from, to, n int) (int, syscall.Errno) { return splice(from, to, n) }
func (kernel) writable(fd int) bool                        { return writable(fd) }
func (kernel) sendAtOnce(fd int)                           { _ = sendAtOnce(fd) }
func (kernel) keepUrgent(fd int)                           { keepUrgent(fd) }
func (kernel) buffer(fd, which int) int                    { return buffer(fd, which) }
func (kernel) setBuffer(fd, which, size int)               { setBuffer(fd, which, size) }
func (kernel) clampWindow(fd, bytes int)                   { clampWindow(fd, bytes) }
func (kernel) unread(fd int) int                           { return queued(fd, unix.SIOCINQ) }
func (kernel) unsent(fd int) int                           { return queued(fd, unix.SIOCOUTQ) }
func (kernel) failed(fd int) bool                          { return connectError(fd) != 0 }
func (kernel) shutdown(fd int) error                       { return unix.Shutdown(fd, unix.SHUT_WR) }
func (kernel) close(fd int)                                { closeSocket(fd) }
func (kernel) reset(fd int)                                { resetSocket(fd) }

// closeSocket closes a socket whose data is all written; the kernel delivers it.
func closeSocket(fd int) {
	_ = setOption(fd, unix.SOL_SOCKET, unix.SO_LINGER, unix.Linger{})
	resetSocket(fd)
}

// resetSocket closes a socket with a reset.
func resetSocket(fd int) { _, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// The calls below never wait, so Go's scheduler need not know of them.

func read(fd int, b []byte) (int, syscall.Errno) {
	return raw(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
}

func write(fd int, b []byte) (int, syscall.Errno) {
	return raw(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
}

func splice(from, to, n int) (int, syscall.Errno) {
	return raw(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
}

// writable reports whether a socket takes more bytes now.
func writable(fd int) bool {
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
	n, errno := raw(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&unix.Timespec{})), 0, 0, 0)
	return errno == 0 && n == 1
}

// raw calls the kernel, again if a signal interrupted it.
func raw(trap, a, b, c, d, e, f uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(trap, a, b, c, d, e, f)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// accept returns the next connection of a listener; errno is EAGAIN if there is none.
func accept(listener int) (fd int, peer netip.AddrPort, errno syscall.Errno) {
	var sa unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	fd, errno = raw(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, peer, errno
	}
	return fd, addrPort(&sa), 0
}

// localAddr returns a socket's own address.
func localAddr(fd int) (netip.AddrPort, error) {
	var sa unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	_, errno := raw(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), 0, 0, 0)
	if errno != 0 {
		return netip.AddrPort{}, fmt.Errorf("read the socket's address: %w", errno)
	}
	return addrPort(&sa), nil
}

func addrPort(sa *unix.RawSockaddrAny) netip.AddrPort {
	switch sa.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), bigEndian(&in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom16(in.Addr).Unmap(), bigEndian(&in.Port))
	}
	return netip.AddrPort{}
}

func bigEndian(port *uint16) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(port))[:])
}

// connectError returns why a socket is not connected; 0 if it is, EAGAIN if that is not known yet.
func connectError(fd int) syscall.Errno {
	var sa unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	if _, errno := raw(unix.SYS_GETPEERNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), 0, 0, 0); errno == 0 {
		return 0
	}
	why, errno := intOption(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case errno != 0:
		return unix.EIO
	case why == 0:
		return unix.EAGAIN
	}
	return syscall.Errno(why)
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return unix.EIO
}
