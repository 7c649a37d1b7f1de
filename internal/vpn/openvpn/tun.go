package openvpn

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const tunDevice = "/dev/net/tun"

// makeTUN creates the interface, or reuses one left by a crash. It is persistent: when openvpn
// ends, the interface stays with its addresses and routes, so that its traffic waits for the next
// openvpn and does not take another route.
func makeTUN(name string, mtu int) error {
	return withTUN(name, func(fd int) error {
		if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
			return tunError(name, err)
		}
		return setMTU(name, mtu)
	})
}

// removeTUN removes the interface. It is no error if it does not exist.
func removeTUN(name string) error {
	return withTUN(name, func(fd int) error {
		if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0); err != nil {
			return fmt.Errorf("remove tunnel interface %s: %w", name, err)
		}
		return nil
	})
}

func withTUN(name string, fn func(fd int) error) error {
	request, err := unix.NewIfreq(name)
	if err != nil || name == "" {
		return tunError(name, unix.EINVAL)
	}
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return tunError(name, &os.PathError{Op: "open", Path: tunDevice, Err: err})
	}
	defer unix.Close(fd)
	// The same flags as openvpn's, which could not attach otherwise.
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_ONE_QUEUE)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return tunError(name, err)
	}
	return fn(fd)
}

func setMTU(name string, mtu int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return tunError(name, err)
	}
	request.SetUint32(uint32(mtu))
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFMTU, request); err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", name, mtu, err)
	}
	return nil
}

func tunError(name string, err error) error {
	mend := "see the kernel's log (dmesg)"
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		mend = "load the kernel's module (modprobe tun); in a container, give it " + tunDevice
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		mend = "run as root or with CAP_NET_ADMIN, and in a container allow the device " + tunDevice
	case errors.Is(err, unix.EBUSY):
		mend = "another program has an interface of this name: end it"
	case errors.Is(err, unix.EINVAL):
		mend = "an interface's name has 1 to 15 characters, and one of another kind may not be there: ip link show " + name
	}
	return &TUNError{Interface: name, Mend: mend, Err: err}
}
