package netnstest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TUN makes a TUN interface, and returns the file through which its packets pass when the interface is ready. The file is
// closed at the end of the test.
func (e End) TUN(t testing.TB) (tun *os.File) {
	t.Helper()
	e.NS.Must(t, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Skipf("needs /dev/net/tun: %v", err)
		}
		request, err := unix.NewIfreq(e.Name)
		if err != nil {
			unix.Close(fd)
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			unix.Close(fd)
			return err
		}
		tun = os.NewFile(uintptr(fd), "tun")
		return nil
	})
	t.Cleanup(func() { tun.Close() })
	e.up(t)
	e.await(t)
	return tun
}
