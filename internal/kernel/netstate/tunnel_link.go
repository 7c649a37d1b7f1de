package netstate

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TunnelLink is a tunnel's interface. Its methods act in the namespace where it was opened, and may be called on any
// thread.
type TunnelLink struct {
	handle *netlink.Handle
	name   string
	index  int
}

// AddWireGuard creates an interface of the kernel's WireGuard, loading the module if necessary. If
// the kernel has none, the error is errors.ErrUnsupported.
func AddWireGuard(name string, mtu int) (*TunnelLink, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("add WireGuard interface %s: the kernel has no WireGuard: %w", name, errors.ErrUnsupported)
	}
	if err != nil {
		return nil, fmt.Errorf("add WireGuard interface %s: %w", name, err)
	}
	return OpenTunnelLink(name)
}

// OpenTunnelLink opens an existing interface.
func OpenTunnelLink(name string) (*TunnelLink, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	link, err := handle.LinkByName(name)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("open interface %s: %w", name, err)
	}
	return &TunnelLink{handle: handle, name: name, index: link.Attrs().Index}, nil
}

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenModeNone = 1

// Up brings the interface up without an IPv6 link-local address, which would cause neighbour
// discovery in the tunnel.
func (l *TunnelLink) Up() error {
	err := l.handle.LinkSetIP6AddrGenMode(l.link(), addrGenModeNone)
	if isNoIPv6(err) {
		err = nil
	}
	if err == nil {
		err = l.handle.LinkSetUp(l.link())
	}
	if err != nil {
		return fmt.Errorf("bring interface %s up: %w", l.name, err)
	}
	return nil
}

// isNoIPv6 reports whether err is the error of a kernel without IPv6.
func isNoIPv6(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

// SetMTU sets the largest packet, in bytes.
func (l *TunnelLink) SetMTU(mtu int) error {
	if err := l.handle.LinkSetMTU(l.link(), mtu); err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", l.name, mtu, err)
	}
	return nil
}

// Remove removes the interface, if it still exists.
func (l *TunnelLink) Remove() error {
	if err := l.handle.LinkDel(l.link()); err != nil && !isLinkGone(err) {
		return fmt.Errorf("remove interface %s: %w", l.name, err)
	}
	return nil
}

// Close releases the handle. The interface stays.
func (l *TunnelLink) Close() { l.handle.Close() }

// link identifies the interface by index, because another may have its name by now.
func (l *TunnelLink) link() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.index}}
}
