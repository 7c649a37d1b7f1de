package netstate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Tunnel describes the host's configuration for a tunnel. It does not include the interface, which is created
// elsewhere.
type Tunnel struct {
	Interface string
	Addresses []netip.Prefix
	MTU       int // bytes; 0 leaves it unchanged
	// Sources lists the addresses whose packets leave by the tunnel, whatever their destination. No other packets of
	// the host do, not even those to the addresses' subnets. If Sources is empty, the subnets are routed into the
	// tunnel as on other interfaces.
	Sources []netip.Addr
}

// ErrNoIPv6 means that an interface cannot have IPv6 addresses. Everything else was set up.
var ErrNoIPv6 = errors.New("no IPv6 on the interface")

// minMTU6 is the smallest MTU with which the kernel allows IPv6 on an interface (RFC 8200, section 5).
const minMTU6 = 1280

// SetTunnel brings a tunnel's interface up and gives it exactly these addresses, rules and routes, in the calling
// thread's network namespace. It does not touch what exists already. Call it again after the interface was down,
// because that removes its routes.
func SetTunnel(t Tunnel) error {
	if err := t.set(); err != nil {
		return fmt.Errorf("set up tunnel interface %s: %w", t.Interface, err)
	}
	return nil
}

func (t Tunnel) set() error {
	link, err := netlink.LinkByName(t.Interface)
	if err != nil {
		return err
	}
	attrs := link.Attrs()
	table, err := tunnelTable(attrs.Index)
	if err != nil {
		return err
	}
	if t.MTU != 0 && t.MTU != attrs.MTU {
		if err := netlink.LinkSetMTU(link, t.MTU); err != nil {
			return fmt.Errorf("set the MTU to %d: %w", t.MTU, err)
		}
		attrs.MTU = t.MTU
	}
	// The kernel answers segments to an address as soon as the host has it, those of unknown connections by resets. So the
	// rules for packets from an address come before it, and go after it.
	if err := addRules(attrs.Index, table, t.Sources); err != nil {
		return err
	}
	noIPv6, err := t.setAddresses(link)
	if err != nil {
		return err
	}
	if noIPv6 != nil {
		t.Sources = slices.DeleteFunc(slices.Clone(t.Sources), netip.Addr.Is6)
	}
	if attrs.Flags&net.FlagUp == 0 {
		l, err := OpenTunnelLink(t.Interface)
		if err != nil {
			return err
		}
		defer l.Close()
		if err := l.Up(); err != nil {
			return err
		}
	}
	if err := setRoutes(attrs.Index, table, t.Sources); err != nil {
		return err
	}
	if err := removeRules(table, t.Sources); err != nil {
		return err
	}
	for _, addr := range t.Sources {
		if leavesBy(attrs.Index, addr) {
			continue
		}
		// A rule of a removed interface may be in the way.
		if err := removeOrphans(); err != nil {
			return err
		}
		if !leavesBy(attrs.Index, addr) {
			return fmt.Errorf("packets from %v do not leave by the tunnel: another routing rule takes them (see ip rule; that of the tunnel has priority %d)",
				addr, tunnelPriority)
		}
	}
	return noIPv6
}

// setAddresses sets the addresses. It returns separately an error that only affects IPv6.
func (t Tunnel) setAddresses(link netlink.Link) (noIPv6, err error) {
	listed, err := consistent(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	flags := unix.IFA_F_NODAD // nobody else can have them
	if len(t.Sources) > 0 {
		flags |= unix.IFA_F_NOPREFIXROUTE
	}
	var kept []netip.Prefix
	for _, a := range listed {
		p := prefixOf(a.IPNet)
		if a.Flags&unix.IFA_F_NOPREFIXROUTE == flags&unix.IFA_F_NOPREFIXROUTE && slices.Contains(t.Addresses, p) {
			kept = append(kept, p)
			continue
		}
		if p.Addr().IsLinkLocalUnicast() {
			continue // created by the kernel when the interface was brought up
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return nil, fmt.Errorf("remove address %v: %w", p, err)
		}
	}
	for _, p := range t.Addresses {
		if slices.Contains(kept, p) {
			continue
		}
		if p.Addr().Is6() && link.Attrs().MTU < minMTU6 {
			noIPv6 = fmt.Errorf("add address %v: %w: its MTU is %d, IPv6 needs %d", p, ErrNoIPv6, link.Attrs().MTU, minMTU6)
			continue
		}
		err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(p), Flags: flags, Broadcast: net.IPv4zero})
		if p.Addr().Is6() && (errors.Is(err, unix.EACCES) || isNoIPv6(err)) {
			noIPv6 = fmt.Errorf("add address %v: %w: sysctl net.ipv6.conf.%s.disable_ipv6 or the kernel's command line forbids it (%w)", p, ErrNoIPv6, t.Interface, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("add address %v: %w", p, err)
		}
	}
	return noIPv6, nil
}

func prefixOf(n *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
