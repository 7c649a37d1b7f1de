package mptcp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// UserspacePMSysctl is the sysctl that gives new sockets of the namespace to
// userspace on this kernel, and its value, for a caller that keeps a record of what
// it changes. Live connections keep the path manager that they have. An error
// is ErrSwitchedOff where MPTCP is, an *UnsupportedError without that path manager.
func (n *Namespace) UserspacePMSysctl() (key, value string, err error) {
	enabled, err := n.sysctls.read("enabled")
	if err != nil {
		return "", "", err
	}
	if enabled == "0" {
		return "", "", ErrSwitchedOff
	}
	if _, err := n.sysctls.read("path_manager"); err == nil { // since 6.15
		return "net/mptcp/path_manager", "userspace", nil
	}
	if _, err := n.sysctls.read("pm_type"); errors.Is(err, fs.ErrNotExist) {
		return "", "", unsupported(Userspace)
	} else if err != nil {
		return "", "", err
	}
	return "net/mptcp/pm_type", "1", nil
}

// DisplacedError says that new sockets of the namespace get another path manager than userspace.
type DisplacedError struct {
	Sysctl string // as sysctl(8) writes it
	Value  string // what it is
	Want   string // what gives new sockets to userspace
}

func (e *DisplacedError) Error() string {
	return fmt.Sprintf("%s is %s, and not %s", e.Sysctl, e.Value, e.Want)
}

// CheckUserspacePM reports whether new sockets of the namespace are given to userspace now, which anybody who may
// write sysctls can change. If not, the error is ErrSwitchedOff or a *DisplacedError.
func (n *Namespace) CheckUserspacePM() error {
	key, want, err := n.UserspacePMSysctl()
	if err != nil {
		return err
	}
	value, err := n.sysctls.read(path.Base(key))
	if err == nil && value != want {
		err = &DisplacedError{Sysctl: strings.ReplaceAll(key, "/", "."), Value: value, Want: want}
	}
	return err
}

// sysctls is the directory net/mptcp of the namespace of the thread that
// opened it. The open directory keeps to that namespace, whichever thread uses
// it later; a path under /proc/sys would be looked up anew in the namespace of
// the thread that happens to open it.
type sysctls struct{ dir *os.Root }

func openSysctls() (sysctls, error) {
	dir, err := os.OpenRoot("/proc/sys/net/mptcp")
	if errors.Is(err, fs.ErrNotExist) {
		return sysctls{}, unsupported(MPTCP)
	}
	if err != nil {
		return sysctls{}, fmt.Errorf("open MPTCP sysctls: %w", err)
	}
	return sysctls{dir}, nil
}

func (s sysctls) close() error {
	if s.dir == nil {
		return nil
	}
	return s.dir.Close()
}

func (s sysctls) read(name string) (string, error) {
	b, err := s.dir.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read sysctl net.mptcp.%s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}
