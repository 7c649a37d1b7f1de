package doctor

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/bpf/option"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

// errCannotTry means that a trial was impossible, which proves nothing about the host.
var errCannotTry = errors.New("not tried")

// The loopback interface has index 1 in every network namespace.
const loopback = 1

// inThrowaway runs f in a temporary network namespace, so that neither the host's network nor a
// running agent is affected.
func inThrowaway(f func() error) error {
	result := make(chan error)
	go func() {
		// Never unlocked: the thread ends here, and the namespace with it.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("%w: a network namespace of its own needs root: %w", errCannotTry, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// tryInBandSender loads a client's programs. The one at the cgroup only acts on connections of the
// temporary namespace.
func tryInBandSender(cgroup string) error {
	return inThrowaway(func() error {
		s, err := inband.OpenSender(inband.SenderConfig{Cgroup: cgroup})
		if err != nil {
			return err
		}
		return errors.Join(s.Attach([]int{loopback}), s.Close())
	})
}

// tryInBandReceiver loads a waypoint's programs.
func tryInBandReceiver() error {
	return inThrowaway(func() error {
		r, err := inband.OpenReceiver(^uint32(0))
		if err != nil {
			return err
		}
		return errors.Join(r.Attach([]int{loopback}), r.Close(), inband.CleanUp())
	})
}

const trialInterface = "dcoltry"

func openTrialDevice() (*wireguard.Device, error) {
	key, _, err := wireguard.NewKey()
	if err != nil {
		return nil, err
	}
	return wireguard.Open(wireguard.Config{
		Interface: trialInterface, PrivateKey: key, MTU: 1420, Log: slog.New(slog.DiscardHandler),
	})
}

// TryWireGuard returns the available WireGuard, as wireguard.Device.Kind does.
func TryWireGuard() (kind string, err error) {
	err = inThrowaway(func() error {
		d, err := openTrialDevice()
		if err != nil {
			return err
		}
		kind = d.Kind()
		return d.Close()
	})
	return kind, err
}

// tryTunnelRouting routes two addresses into a tunnel, as a client does.
func tryTunnelRouting() error {
	return inThrowaway(func() error {
		d, err := openTrialDevice()
		if err != nil {
			return fmt.Errorf("%w: there is no tunnel to try it with: %w", errCannotTry, err)
		}
		// Addresses for documentation (RFC 5737, RFC 3849).
		sources := []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, 1}), netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 2})}
		t := netstate.Tunnel{Interface: trialInterface, Sources: sources}
		for _, a := range sources {
			t.Addresses = append(t.Addresses, netip.PrefixFrom(a, a.BitLen()))
		}
		return errors.Join(netstate.SetTunnel(t), d.Close())
	})
}

// tryOptions attaches the program of TCP options, for the temporary namespace.
func tryOptions() error {
	return inThrowaway(func() error {
		x, err := option.Open(option.Config{})
		if err != nil {
			return err
		}
		return x.Close()
	})
}

// TryFallback reports whether connections that became plain TCP can lose data, as mptcp.LosesOverlaps does.
func TryFallback() (loses bool, err error) {
	err = inThrowaway(func() (err error) {
		lo, err := netlink.LinkByIndex(loopback)
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			loses, err = mptcp.LosesOverlaps()
		}
		return err
	})
	return loses, err
}

// tryFastOpen sets the option of listeners that accept data in SYNs. MPTCP sockets have it since Linux 6.2.
func tryFastOpen() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	if err != nil {
		return fmt.Errorf("%w: no MPTCP socket: %w", errCannotTry, err)
	}
	defer unix.Close(fd)
	return os.NewSyscallError("set TCP_FASTOPEN", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 1))
}

// tryCongestion registers one of dcol's congestion controls with the kernel for a moment, if name is one, and selects
// it.
func tryCongestion(name string) error {
	return inThrowaway(func() error {
		if slices.Contains(cc.Algorithms, cc.Algorithm(name)) {
			r, err := cc.Register(cc.Algorithm(name))
			if err != nil {
				return err
			}
			defer r.Close()
			name = r.Name()
		}
		c, err := cc.Choose([]cc.Rule{{Name: name}})
		if err != nil {
			return err
		}
		return c.Close()
	})
}
