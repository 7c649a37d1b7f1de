package mptcp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Since 6.12, Linux suspects a network of dropping MPTCP when SYNs with MPTCP are lost, and the one
// after them, as plain TCP, is not. It then uses plain TCP for all new connections of the network
// namespace, for as many seconds as a sysctl says. Each further time doubles that, up to 64 times the
// value, until a connection has MPTCP. A link that was down for some seconds looks the same.
const (
	blackholeTimeout = "blackhole_timeout"
	linuxsTimeout    = "3600"
	// BlackholeTimeout is the value that dcol gives it. An outage turns MPTCP off for a minute
	// instead of an hour. In a network that does drop MPTCP, connections that begin when the time is
	// over take three seconds longer, but that becomes ever rarer, until it happens once in 64 minutes.
	BlackholeTimeout = 60
)

// BlackholeSysctl returns the sysctl for the time that the kernel uses plain TCP after an outage,
// and the value that an agent gives it. ok is false if this kernel has no such sysctl, and if
// somebody has set another value than Linux's default, which is respected.
func (n *Namespace) BlackholeSysctl() (key, value string, ok bool, err error) {
	now, err := n.sysctls.read(blackholeTimeout)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "", false, nil
	case err != nil:
		return "", "", false, err
	case now != linuxsTimeout:
		return "", "", false, nil
	}
	return "net/mptcp/" + blackholeTimeout, strconv.Itoa(BlackholeTimeout), true, nil
}

// PlainTCP reports whether the kernel uses plain TCP at present for all new connections of the calling
// thread's network namespace. If there was an outage since the namespace was made, it finds that out
// with a connection to a port of this host at which nobody listens.
func PlainTCP() (bool, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := openCounters()
	defer c.close()
	outages, err := c.read("Blackhole")
	if err != nil || outages == 0 {
		return false, err
	}
	const refused = "MPCapableSYNTXDisabled" // sockets that asked for MPTCP and became plain TCP for this reason
	before, err := c.read(refused)
	if err != nil {
		return false, err
	}
	if err := knock(); err != nil {
		return false, err
	}
	after, err := c.read(refused)
	return after > before, err
}

// knock begins an MPTCP connection to a port that is taken, and at which nobody listens.
func knock() error {
	taken, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(taken)
	if err := unix.Bind(taken, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	address, err := unix.Getsockname(taken)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_MPTCP)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	err = unix.Connect(s, address)
	if err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("try MPTCP with this host itself: %w", os.NewSyscallError("connect", err))
	}
	return nil
}
