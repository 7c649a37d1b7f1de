package mptcp

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"
)

const inactivitySysctl = "close_timeout"

// InactivitySysctl returns the sysctl for the time that the kernel keeps a connection without subflows (RFC 8684,
// section 3.3.3; inactivity timeout in V.-H. Tran's thesis, 2019, 6.4.4), and its value for a timeout of whole seconds.
// It applies to all connections of the namespace. The error is an *UnsupportedError if the kernel has no such sysctl.
func (n *Namespace) InactivitySysctl(timeout time.Duration) (key, value string, err error) {
	_, err = n.sysctls.read(inactivitySysctl)
	if errors.Is(err, fs.ErrNotExist) {
		err = unsupported(InactivityTimeout)
	}
	return "net/mptcp/" + inactivitySysctl, strconv.Itoa(int(timeout / time.Second)), err
}

// Inactivity returns the time that the kernel keeps a connection without subflows. It begins when the last subflow
// ends, or the last attempt at one.
func (n *Namespace) Inactivity() (time.Duration, error) {
	text, err := n.sysctls.read(inactivitySysctl)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Minute, nil // TCP_TIMEWAIT_LEN, before Linux 6.7
	}
	if err != nil {
		return 0, err
	}
	seconds, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read the sysctl net.mptcp.%s: %w", inactivitySysctl, err)
	}
	return time.Duration(seconds) * time.Second, nil
}
