package wireguard

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/vpn"
)

// UnavailableError means that this host supports neither the kernel's WireGuard nor the embedded
// one.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("WireGuard is not available: %v (%s)", e.Err, e.Fix)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// tunError explains why there is no TUN interface. kernel is why the kernel's WireGuard is not
// used, or nil if it was not requested.
func tunError(err, kernel error) error {
	var tun *vpn.TUNError
	if !errors.As(err, &tun) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
		return err
	}
	return &UnavailableError{Fix: "modprobe wireguard, or " + tun.Fix, Err: errors.Join(kernel, tun.Err)}
}

func inUseError(name string, err error) error {
	return fmt.Errorf("%w: an interface with this name exists, from another program or a killed agent (dcol down, or ip link del %s)", err, name)
}

// portError explains why a device does not listen.
func portError(port int, err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("listen on UDP port %d: %w: choose another port, or end the program that has it (ss -ulpn)", port, os.NewSyscallError("bind", unix.EADDRINUSE))
	}
	return fmt.Errorf("listen on UDP port %d: %w", port, err)
}
