package vpn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

const tunDevice = "/dev/net/tun"

// TUNError means that a TUN interface could not be created or opened.
type TUNError struct {
	Interface string
	Fix       string
	Err       error
}

func (e *TUNError) Error() string {
	return fmt.Sprintf("open tunnel interface %s: %v: %s", e.Interface, e.Err, e.Fix)
}

func (e *TUNError) Unwrap() error { return e.Err }

// OpenTUN opens a TUN interface and returns its file descriptor. It creates the interface if there is
// none of this name. flags are those of TUNSETIFF. The error is a *TUNError.
func OpenTUN(name string, flags uint16) (fd int, err error) {
	fd, err = unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, tunError(name, &os.PathError{Op: "open", Path: tunDevice, Err: err})
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return -1, tunError(name, os.NewSyscallError("ioctl TUNSETIFF", err))
	}
	return fd, nil
}

func tunError(name string, err error) error {
	fix := "see the kernel's log (dmesg)"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		fix = "load the kernel's module (modprobe tun); in a container, give it " + tunDevice
	case errors.Is(err, fs.ErrPermission):
		fix = "run as root or with CAP_NET_ADMIN, and let the agent's user open " + tunDevice + " (chmod 666, as udev does); in a container, allow this device"
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EINVAL):
		fix = "another program, or one that was killed, has an interface of this name (dcol down, or ip link del " + name + ")"
	}
	return &TUNError{Interface: name, Fix: fix, Err: err}
}
