package mptcpify

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// makePlain replaces a caller's MPTCP socket by a TCP socket, before it is connected to a server that speaks no MPTCP.
// Such a connection gains nothing from MPTCP, and some kernels lose data of it (docs/kernel-behaviour.md). The socket
// stays as it is if anybody could notice the replacement.
//
// The caller waits in connect(). If it is the only thread of its process, nothing uses the socket meanwhile.
func (s *supervisor) makePlain(n *notification) {
	if now := time.Now(); s.threads.isSeveral(n.tid, now) || !s.threads.look(n.tid, now) {
		return
	}
	if namespace, err := namespaceOf(n.tid); err != nil || namespace != s.homeID {
		return
	}
	old, err := s.callerSocket(n)
	if err != nil {
		return
	}
	defer unix.Close(old.fd)
	number := int(int32(n.args[0]))
	if old.bound || !s.justMade(n.tid, old.cookie) || !isOnlyDescriptor(n.tid, number, old.fd) {
		return
	}
	flags, err := descriptorFlags(n.tid, number)
	if err != nil || flags&^(unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|largeFile) != 0 {
		return
	}
	fresh, err := unix.Socket(old.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags&unix.O_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return
	}
	defer unix.Close(fresh)
	if err := errors.Join(copyOptions(fresh, old.fd), copyOnly6(fresh, old), s.giveTo(n.tid, fresh)); err != nil {
		return
	}
	_ = replaceFD(s.listener, n.id, fresh, number, flags&unix.O_CLOEXEC != 0)
}

// largeFile is O_LARGEFILE, which the kernel may add to any file.
const largeFile = 0o100000

// descriptorFlags returns the flags of a descriptor and its file, in the form of proc_pid_fdinfo(5).
func descriptorFlags(tid uint32, number int) (int, error) {
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/fdinfo/" + strconv.Itoa(number))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseInt(strings.TrimSpace(value), 8, 64)
			return int(flags), err
		}
	}
	return 0, errors.New("file without flags")
}

// replaceFD puts fd in the place of the caller's descriptor number, which is closed. The call still waits afterwards.
func replaceFD(listener int, id uint64, fd, number int, closeOnExec bool) error {
	replace := fdAnswer{id: id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcFD: uint32(fd), newFD: uint32(number)}
	if closeOnExec {
		replace.newFDFlags = unix.O_CLOEXEC
	}
	return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&replace))
}

// errOption means that a socket has an option that cannot be copied.
var errOption = errors.New("socket with an option that cannot be copied")

// option names a socket option.
type option struct{ level, name int }

// The options that programs can set and read on MPTCP sockets (net/mptcp/sockopt.c), and that matter to a connection of
// an unbound socket.
var (
	// copied are options with a number, which is copied.
	copied = []option{
		{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.SOL_SOCKET, unix.SO_REUSEPORT}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
		{unix.SOL_SOCKET, unix.SO_PRIORITY}, {unix.SOL_SOCKET, unix.SO_MARK}, {unix.SOL_SOCKET, unix.SO_RCVLOWAT},
		{unix.SOL_SOCKET, unix.SO_BUSY_POLL}, {unix.SOL_SOCKET, unix.SO_INCOMING_CPU}, {unix.SOL_SOCKET, unix.SO_DEBUG},
		{unix.IPPROTO_IP, unix.IP_TOS}, {unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT}, {unix.IPPROTO_IP, ipLocalPortRange},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.IPPROTO_TCP, unix.TCP_CORK}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, {unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT},
		{unix.IPPROTO_TCP, unix.TCP_INQ}, {unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT}, {unix.IPPROTO_TCP, unix.TCP_FASTOPEN_NO_COOKIE},
		{unix.IPPROTO_TCP, unix.TCP_MAXSEG},
	}
	// unset are options that must be 0.
	unset = []option{
		{unix.SOL_SOCKET, unix.SO_TIMESTAMP}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPING},
		{unix.SOL_SOCKET, unix.SO_TIMESTAMP_NEW}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW},
		{unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL}, {unix.IPPROTO_IP, unix.IP_FREEBIND}, {unix.IPPROTO_IP, unix.IP_TRANSPARENT},
	}
)

// ipLocalPortRange is IP_LOCAL_PORT_RANGE of linux/in.h.
const ipLocalPortRange = 51

// copyOptions gives a new TCP socket the options of an MPTCP socket.
func copyOptions(to, from int) error {
	for _, o := range unset {
		if value, _, err := read(from, o); err != nil || value != 0 {
			return errors.Join(errOption, err)
		}
	}
	for _, o := range copied {
		value, ok, err := read(from, o)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		own, _, err := read(to, o)
		if err == nil && own != value {
			err = unix.SetsockoptInt(to, o.level, o.name, value)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(copyBuffers(to, from), copyTimes(to, from), copyCongestion(to, from))
}

// read returns the value of an option. ok is false if sockets of this kind have no such option, so that it cannot have
// been set.
func read(fd int, o option) (value int, ok bool, err error) {
	value, err = unix.GetsockoptInt(fd, o.level, o.name)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOPROTOOPT) {
		return 0, false, nil
	}
	return value, err == nil, err
}

// copyBuffers copies the buffer sizes that the program has set. The kernel doubles the size that it is given.
func copyBuffers(to, from int) error {
	const sendLocked, receiveLocked = 1, 2 // of SO_BUF_LOCK
	locked, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
	if err != nil {
		return err
	}
	for lock, name := range map[int]int{sendLocked: unix.SO_SNDBUF, receiveLocked: unix.SO_RCVBUF} {
		if locked&lock == 0 {
			continue
		}
		size, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, name)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(to, unix.SOL_SOCKET, name, size/2); err != nil {
			return err
		}
		// A size that the program could set with CAP_NET_ADMIN (SO_SNDBUFFORCE) may be refused here.
		if got, err := unix.GetsockoptInt(to, unix.SOL_SOCKET, name); err != nil || got != size {
			return errors.Join(errOption, err)
		}
	}
	return nil
}

// copyTimes copies SO_LINGER and the timeouts for sending and receiving.
func copyTimes(to, from int) error {
	for _, name := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		limit, err := unix.GetsockoptTimeval(from, unix.SOL_SOCKET, name)
		if err == nil && limit.Nano() != 0 {
			err = unix.SetsockoptTimeval(to, unix.SOL_SOCKET, name, limit)
		}
		if err != nil {
			return err
		}
	}
	var linger unix.Linger
	size := uint32(unsafe.Sizeof(linger))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(from), unix.SOL_SOCKET, unix.SO_LINGER,
		uintptr(unsafe.Pointer(&linger)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	if linger == (unix.Linger{}) {
		return nil
	}
	return unix.SetsockoptLinger(to, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
}

func copyOnly6(to int, from callerSocket) error {
	if !from.only6 {
		return nil
	}
	return unix.SetsockoptInt(to, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
}

func copyCongestion(to, from int) error {
	want, err := unix.GetsockoptString(from, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return err
	}
	own, err := unix.GetsockoptString(to, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err == nil && own != want {
		err = unix.SetsockoptString(to, unix.IPPROTO_TCP, unix.TCP_CONGESTION, want)
	}
	return err
}
