package mptcp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// UserspacePMSysctl returns the sysctl, and its value, that gives new sockets of the namespace the userspace path
// manager. It is for callers that record what they change. Live connections keep their path manager. The error is
// ErrSwitchedOff if MPTCP is off, and an *UnsupportedError if the kernel lacks that path manager.
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

// DisplacedError reports that new sockets of the namespace get a path manager other than userspace.
type DisplacedError struct {
	Sysctl string // as in sysctl(8)
	Value  string // its present value
	Want   string // the value for userspace
}

func (e *DisplacedError) Error() string {
	return fmt.Sprintf("%s is %s, and not %s", e.Sysctl, e.Value, e.Want)
}

// CheckUserspacePM returns nil if new sockets of the namespace get the userspace path manager now, and otherwise
// ErrSwitchedOff or a *DisplacedError. Any program that may write sysctls can change this at any time.
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

// sysctls is the directory net/mptcp of the network namespace of the thread that opened it. The open directory stays in
// that namespace on any thread. A path under /proc/sys would be resolved in the namespace of the thread that opens it.
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
