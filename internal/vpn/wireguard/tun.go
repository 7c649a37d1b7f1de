package wireguard

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/detour-collective/dcol/internal/vpn"
)

// tunDevice is a TUN interface for the embedded WireGuard. Unlike the library's own, it is told of
// MTU changes by us: the library would look up the interface in the namespace of an arbitrary
// thread.
type tunDevice struct {
	tun.Device
	mtu atomic.Int64

	mu     sync.Mutex
	events chan tun.Event // closed with the device
	closed bool
}

func openTUN(name string, mtu int) (*tunDevice, error) {
	// With IFF_VNET_HDR many packets cross at once, segmented and checksummed by us. IFF_TUN_EXCL
	// refuses an existing interface.
	fd, err := vpn.OpenTUN(name, unix.IFF_TUN|unix.IFF_NO_PI|unix.IFF_VNET_HDR|unix.IFF_TUN_EXCL)
	if err != nil {
		return nil, err
	}
	device, _, err := tun.CreateUnmonitoredTUNFromFD(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	t := &tunDevice{Device: device, events: make(chan tun.Event, 1)}
	t.mtu.Store(int64(mtu))
	return t, nil
}

// MTU returns the MTU last set.
func (t *tunDevice) MTU() (int, error) { return int(t.mtu.Load()), nil }

// Events returns a channel that only reports MTU changes.
func (t *tunDevice) Events() <-chan tun.Event { return t.events }

func (t *tunDevice) mtuIs(mtu int) {
	t.mtu.Store(int64(mtu))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	select {
	case t.events <- tun.EventMTUUpdate:
	default: // an unread event will find the new value
	}
}

// Close removes the interface.
func (t *tunDevice) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	close(t.events)
	return t.Device.Close()
}
