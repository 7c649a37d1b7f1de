package testbed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/emulink"
)

// emulatorBackend gives each end of a link a TUN device. A link emulator carries the packets between the devices.
type emulatorBackend struct {
	seed     uint64
	log      *slog.Logger
	links    []emulink.Link    // until start
	emulator *emulink.Emulator // nil before start
}

func (e *emulatorBackend) connect(link int, l linkPlan, a, b *Host) error {
	devA, err := openTUN(a, a.plan.iface(link).name)
	if err != nil {
		return err
	}
	devB, err := openTUN(b, b.plan.iface(link).name)
	if err != nil {
		devA.Close()
		return err
	}
	e.links = append(e.links, emulink.Link{
		A: devA, B: devB, AtoB: l.AtoB, BtoA: l.BtoA, MTU: l.mtu(), EndA: endOf(a, link), EndB: endOf(b, link), Radio: l.Radio,
	})
	return nil
}

// endOf names the host at the end of a link.
func endOf(h *Host, link int) emulink.End {
	iface := h.plan.iface(link)
	return emulink.End{Host: h.plan.Name, Addresses: [2]netip.Addr{iface.net4.Addr(), iface.net6.Addr()}}
}

// openTUN creates a TUN device on a host. The device exists while the file is open.
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

// start passes the devices to the emulator. They exist until the emulator ends.
func (e *emulatorBackend) start(ctx context.Context) (err error) {
	e.emulator, err = emulink.Start(ctx, e.links, e.seed, e.log)
	return errors.Join(err, e.closeDevices())
}

func (e *emulatorBackend) closeDevices() error {
	var errs []error
	for _, l := range e.links {
		errs = append(errs, l.A.Close(), l.B.Close())
	}
	e.links = nil
	return errors.Join(errs...)
}

// station changes what happens to packets at a host.
func (e *emulatorBackend) station(s emulink.Station) error { return e.emulator.SetStation(s) }

func (e *emulatorBackend) set(link int, ab, ba LinkParams) error { return e.emulator.Set(link, ab, ba) }
func (e *emulatorBackend) down(link int, down bool) error        { return e.emulator.Down(link, down) }
func (e *emulatorBackend) reset() error                          { return e.emulator.Reset() }

func (e *emulatorBackend) stats(link int) (ab, ba LinkStats, err error) {
	return e.emulator.Stats(link)
}

func (e *emulatorBackend) scheduling() string { return e.emulator.Scheduling() }

func (e *emulatorBackend) close() error {
	err := e.closeDevices()
	if e.emulator != nil {
		err = errors.Join(err, e.emulator.Close())
	}
	return err
}
