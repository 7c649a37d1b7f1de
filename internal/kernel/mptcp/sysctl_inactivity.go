package mptcp

import (
	"errors"
	"io/fs"
	"strconv"
	"time"
)

// InactivitySysctl returns the sysctl for how long the kernel keeps a connection without subflows (RFC 8684, section 3.3.3;
// inactivity timeout in V.-H. Tran's thesis, 2019, 6.4.4), and its value for a time of whole seconds. It applies to all
// connections of the namespace. The error is an *UnsupportedError if the kernel has no such sysctl.
func (n *Namespace) InactivitySysctl(timeout time.Duration) (key, value string, err error) {
	const name = "close_timeout"
	_, err = n.sysctls.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = unsupported(InactivityTimeout)
	}
	return "net/mptcp/" + name, strconv.Itoa(int(timeout / time.Second)), err
}
