package openvpn

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/vpn"
)

// makeTUN creates the interface, or reuses one left by a crash. It is persistent: when openvpn
// ends, the interface stays with its addresses and routes, so that its traffic waits for the next
// openvpn and does not take another route.
func makeTUN(name string) error { return setPersistent(name, 1) }

// removeTUN removes the interface. It is no error if it does not exist.
func removeTUN(name string) error { return setPersistent(name, 0) }

func setPersistent(name string, persistent int) error {
	// The same flags as openvpn's, which could not attach otherwise.
	fd, err := vpn.OpenTUN(name, unix.IFF_TUN|unix.IFF_NO_PI|unix.IFF_ONE_QUEUE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, persistent); err != nil {
		return fmt.Errorf("make or remove tunnel interface %s: %w", name, os.NewSyscallError("ioctl TUNSETPERSIST", err))
	}
	return nil
}
