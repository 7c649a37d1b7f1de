package testbed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/emulink"
)

// wireBackend gives each end of a link a TUN device and has a wire carry the
// packets between them.
type wireBackend struct {
	seed  uint64
	log   *slog.Logger
	links []emulink.Link
	wire  *emulink.Wire // nil before start
}

func newWireBackend(seed uint64, log *slog.Logger) *wireBackend {
	return &wireBackend{seed: seed, log: log}
}

func (w *wireBackend) connect(link int, l linkPlan, a, b *Host) error {
	devA, err := openTUN(a, a.plan.iface(link).name)
	if err != nil {
		return err
	}
	devB, err := openTUN(b, b.plan.iface(link).name)
	if err != nil {
		devA.Close()
		return err
	}
	w.links = append(w.links, emulink.Link{A: devA, B: devB, AtoB: l.AtoB, BtoA: l.BtoA, MTU: l.mtu()})
	return nil
}

// openTUN creates a TUN device on a host; it exists while the file is open.
func openTUN(h *Host, name string) (dev *os.File, err error) {
	err = h.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w: the kernel needs TUN (`modprobe tun`)", err)
		}
		ifreq, err := unix.NewIfreq(name)
		if err == nil {
			ifreq.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifreq)
		}
		if err == nil {
			err = setTxQueue(name)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("create TUN device %s: %w", name, err)
		}
		dev = os.NewFile(uintptr(fd), "tun-"+name)
		return nil
	})
	return dev, err
}

// txQueue is a device's queue, in packets. It is large enough that all drops are decided by the emulator.
const txQueue = 10_000

func setTxQueue(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetTxQLen(link, txQueue)
}

// start hands the devices over: they exist while the wire does.
func (w *wireBackend) start(ctx context.Context) (err error) {
	w.wire, err = emulink.Start(ctx, w.links, w.seed, w.log)
	return errors.Join(err, w.closeDevices())
}

func (w *wireBackend) closeDevices() error {
	var errs []error
	for _, l := range w.links {
		errs = append(errs, l.A.Close(), l.B.Close())
	}
	w.links = nil
	return errors.Join(errs...)
}

func (w *wireBackend) set(link int, ab, ba LinkParams) error { return w.wire.Set(link, ab, ba) }
func (w *wireBackend) down(link int, down bool) error        { return w.wire.Down(link, down) }
func (w *wireBackend) reset() error                          { return w.wire.Reset() }

func (w *wireBackend) stats(link int) (ab, ba LinkStats, err error) { return w.wire.Stats(link) }

func (w *wireBackend) scheduling() string {
	if w.wire == nil {
		return ""
	}
	return w.wire.Scheduling()
}

func (w *wireBackend) close() error {
	err := w.closeDevices()
	if w.wire != nil {
		err = errors.Join(err, w.wire.Close())
	}
	return err
}
