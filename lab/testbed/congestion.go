package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DefaultCongestionControl is that of every new host: the machine's default
// may be another, and experiments compare.
const DefaultCongestionControl = "cubic"

// UnknownCongestionError is the error of a congestion control that this kernel
// neither has nor has a module for.
type UnknownCongestionError struct {
	Name      string
	Available []string
}

func (e *UnknownCongestionError) Error() string {
	return fmt.Sprintf("this kernel has no congestion control %q; it has %s", e.Name, strings.Join(e.Available, ", "))
}

// SetCongestionControl makes an algorithm the one of all connections the host
// opens or accepts from now on. MPTCP subflows are no exception.
//
// A namespace may have as its default only what the machine's
// tcp_allowed_congestion_control lists, which is not for us to change. Any
// other algorithm is set on the host's routes instead, where it wins over what
// a program chooses before it connects; routes added later do not have it.
func (h *Host) SetCongestionControl(name string) error {
	err := h.Do(func() error {
		err := setSysctl("net.ipv4.tcp_congestion_control", name)
		switch {
		case err == nil:
			return setRouteCongestion("")
		case errors.Is(err, unix.EPERM):
			return setRouteCongestion(name)
		case errors.Is(err, fs.ErrNotExist):
			available, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
			return &UnknownCongestionError{Name: name, Available: strings.Fields(string(available))}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("host %s: set congestion control %q: %w", h.Name(), name, err)
	}
	return nil
}

// setRouteCongestion sets the algorithm of all routes that leave the host, or
// takes it off them if name is empty.
func setRouteCongestion(name string) error {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	const loopback = 1 // in every network namespace
	for _, route := range routes {
		if route.LinkIndex == loopback || route.Congctl == name || route.Type != unix.RTN_UNICAST {
			continue
		}
		route.Congctl = name
		route.Flags &= int(netlink.FLAG_ONLINK) // the others are state the kernel reports
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("replace route to %v: %w", route.Dst, err)
		}
	}
	return nil
}
