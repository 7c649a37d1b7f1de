package mptcp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
)

// Reasons for a failed command, for errors.Is. The kernel answers most of them with EINVAL, and only its extended
// acknowledgement distinguishes them.
var (
	ErrNoConnection = errors.New("no MPTCP connection has this token")
	ErrNoSubflow    = errors.New("no subflow has these addresses")
	ErrKernelPM     = errors.New("the connection belongs to the kernel's path manager")
	ErrFamily       = errors.New("the address family does not fit the connection")
	ErrAddressID    = errors.New("the local address and its id contradict those in use")
	ErrNoAddress    = errors.New("no local address of the connection has this id")
	ErrSwitchedOff  = errors.New("MPTCP is switched off in this network namespace: sysctl -w net.mptcp.enabled=1")
	ErrUnsupported  = errors.New("not supported by this kernel")
)

// CommandError is the error of a command that the kernel refused.
type CommandError struct {
	Op            string // "create subflow"
	Token         uint32
	Local, Remote netip.AddrPort
	Errno         syscall.Errno
	Message       string // the kernel's message, if it has one
}

func (e *CommandError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of connection %08x", e.Op, e.Token)
	if e.Local.IsValid() {
		fmt.Fprintf(&b, " from %v", e.Local)
	}
	if e.Remote.IsValid() {
		fmt.Fprintf(&b, " to %v", e.Remote)
	}
	fmt.Fprintf(&b, ": %v", e.Errno)
	if e.Message != "" {
		fmt.Fprintf(&b, " (%s)", e.Message)
	}
	return b.String()
}

// Unwrap returns the errno, for errors.Is.
func (e *CommandError) Unwrap() error { return e.Errno }

// Is reports whether the kernel's answer means target.
func (e *CommandError) Is(target error) bool { return e.reason() == target }

func (e *CommandError) reason() error {
	switch {
	case e.Errno == syscall.ESRCH, e.Message == "subflow not found":
		return ErrNoSubflow
	case e.Message == "invalid token":
		return ErrNoConnection
	case strings.Contains(e.Message, "userspace PM not selected"):
		return ErrKernelPM
	case strings.Contains(e.Message, "families"):
		return ErrFamily
	case strings.Contains(e.Message, "did not match address and id"):
		return ErrAddressID
	case strings.HasPrefix(e.Message, "address with") && strings.HasSuffix(e.Message, "not found"):
		return ErrNoAddress
	}
	return nil
}

// UnsupportedError reports a feature that the running kernel lacks.
type UnsupportedError struct {
	Feature   string
	MinKernel string // first version that has it
	Fix       string // what to do
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not available (it needs Linux %s or newer); %s", e.Feature, e.MinKernel, e.Fix)
}

// Is makes every UnsupportedError match ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// refusal returns the kernel's errno and message from an error of the netlink library, or 0 if err is of another
// kind.
func refusal(err error) (syscall.Errno, string) {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return 0, ""
	}
	var op *netlink.OpError
	if errors.As(err, &op) {
		return errno, op.Message
	}
	return errno, ""
}
