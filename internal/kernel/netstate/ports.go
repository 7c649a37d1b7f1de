package netstate

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// Ports is a set of ports.
type Ports []PortRange

// Has reports whether a port is in the set.
func (p Ports) Has(port uint16) bool {
	return slices.ContainsFunc(p, func(r PortRange) bool { return r.First <= port && port <= r.Last })
}

// FirstPort returns the first port at which the calling thread may listen. Without CAP_NET_BIND_SERVICE, the sysctl of its
// network namespace decides.
func FirstPort() (uint16, error) {
	var held [2]unix.CapUserData // bits 0 to 31, and the others
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &held[0]); err != nil {
		return 0, fmt.Errorf("read this thread's rights: %w", err)
	}
	if held[0].Effective&(1<<unix.CAP_NET_BIND_SERVICE) != 0 {
		return 1, nil
	}
	value, err := Sysctl(unprivilegedPortStart)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("read sysctl %s: %w", unprivilegedPortStart, err)
	}
	return uint16(n), nil
}

const (
	unprivilegedPortStart = "net/ipv4/ip_unprivileged_port_start"
	localPortRange        = "net/ipv4/ip_local_port_range"
	localPortReserved     = "net/ipv4/ip_local_reserved_ports"
)

// LocalPorts returns the range from which the calling thread's network namespace chooses ports for programs that
// do not name one.
func LocalPorts() (PortRange, error) {
	value, err := Sysctl(localPortRange)
	if err != nil {
		return PortRange{}, err
	}
	var r PortRange
	if _, err := fmt.Sscan(value, &r.First, &r.Last); err != nil || r.First > r.Last {
		return PortRange{}, fmt.Errorf("read sysctl %s: %q is not a range of ports", localPortRange, value)
	}
	return r, nil
}

// ReservedPorts returns the ports that the calling thread's network namespace reserves for programs that name
// them. They are never chosen for others.
func ReservedPorts() (Ports, error) {
	value, err := Sysctl(localPortReserved)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ports, err := parsePorts(value)
	if err != nil {
		return nil, fmt.Errorf("read sysctl %s: %w", localPortReserved, err)
	}
	return ports, nil
}

// parsePorts parses a list in the kernel's format, such as "8080,9000-9010".
func parsePorts(list string) (Ports, error) {
	if list == "" {
		return nil, nil
	}
	var ports Ports
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err := errors.Join(err1, err2); err != nil || a > b {
			return nil, fmt.Errorf("%q is not a list of ports such as 8080,9000-9010", list)
		}
		ports = append(ports, PortRange{uint16(a), uint16(b)})
	}
	return ports, nil
}
