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

// Since 6.12, Linux suspects a network of dropping MPTCP if SYNs with MPTCP are lost and the following one, as plain
// TCP, is not. It then uses plain TCP for all new connections of the network namespace, for the number of seconds in a
// sysctl. The time doubles with each further suspicion, up to 64 times the value, until a connection has MPTCP. A link
// that was down for some seconds looks the same.
const (
	blackholeTimeout = "blackhole_timeout"
	linuxsTimeout    = "3600"
	// BlackholeTimeout is the value that dcol sets, in seconds. An outage then turns MPTCP off for a minute instead of
	// an hour. In a network that does drop MPTCP, connections that begin when the time is over take three seconds
	// longer. That becomes ever rarer, down to once in 64 minutes.
	BlackholeTimeout = 60
)

// BlackholeSysctl returns the sysctl for the time that the kernel uses plain TCP after an outage, and the value that an
// agent sets. ok is false if this kernel has no such sysctl, or if its value is not Linux's default: somebody chose it,
// and it is respected.
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

// PlainTCP reports whether the kernel now uses plain TCP for all new connections of the calling thread's network
// namespace. If there was an outage since the namespace was made, it tests that with a connection to a port of this
// host at which nobody listens.
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

// knock begins an MPTCP connection to a port that is bound but at which nobody listens.
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
