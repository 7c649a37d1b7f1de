package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostSysctls are set before a host has links, which inherit the defaults.
func hostSysctls(forward bool) [][2]string {
	f := "0"
	if forward {
		f = "1"
	}
	return [][2]string{
		{"net.ipv4.ip_forward", f},
		{"net.ipv6.conf.all.forwarding", f},
		// The machine may pass on a setting that disables IPv6.
		{"net.ipv6.conf.all.disable_ipv6", "0"},
		{"net.ipv6.conf.default.disable_ipv6", "0"},
		// Strict reverse-path filtering breaks multipath.
		{"net.ipv4.conf.all.rp_filter", "0"},
		{"net.ipv4.conf.default.rp_filter", "0"},
		// Addresses are usable at once, and no packets are on a link but those of programs: there is no duplicate
		// address detection, router solicitation or link-local address.
		{"net.ipv6.conf.default.accept_dad", "0"},
		{"net.ipv6.conf.default.accept_ra", "0"},
		{"net.ipv6.conf.default.router_solicitations", "0"},
		{"net.ipv6.conf.default.addr_gen_mode", "1"},
		// Earlier connections do not affect how a new one starts.
		{"net.ipv4.tcp_no_metrics_save", "1"},
	}
}

// configureHost runs on the host's thread, before it has links.
func configureHost(p hostPlan) error {
	for _, s := range hostSysctls(p.Forward) {
		if err := setSysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	if p.Balance {
		for _, s := range balanceSysctls(p.position) {
			if err := setSysctl(s[0], s[1]); err != nil {
				return fmt.Errorf("balance load: %w", err)
			}
		}
	}
	// A kernel without MPTCP still serves for plain TCP.
	enabled := "1"
	if p.NoMPTCP {
		enabled = "0"
	}
	if err := setSysctl("net.mptcp.enabled", enabled); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if p.Subflows != nil {
		if err := setSubflowLimit(*p.Subflows); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}

// configureIface runs on the host's thread once the backend has made the interface. It sets the interface's addresses
// and brings it up.
func configureIface(p ifacePlan) error {
	link, err := findLink(p.name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(link, p.mtu); err != nil {
		return fmt.Errorf("set MTU %d on %s: %w", p.mtu, p.name, err)
	}
	// Disable address resolution, as on TUN devices. The backend adds the neighbour entries. Without ARP and
	// ND, IPv6 joins no groups and sends no reports.
	if err := netlink.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("turn off address resolution on %s: %w", p.name, err)
	}
	if err := netlink.LinkSetMulticastOff(link); err != nil {
		return fmt.Errorf("turn off multicast on %s: %w", p.name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring %s up: %w", p.name, err)
	}
	return addAddresses(link, p)
}

func addAddresses(link netlink.Link, p ifacePlan) error {
	for _, prefix := range []netip.Prefix{p.net4, p.net6} {
		if !prefix.IsValid() {
			continue
		}
		addr := &netlink.Addr{IPNet: ipNet(prefix), Flags: 0}
		if prefix.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %v to %s: %w", prefix, p.name, err)
		}
	}
	return nil
}

// setSysctls runs on the host's thread when all its interfaces are up, because some parameters belong to interfaces.
func setSysctls(p hostPlan) error {
	for _, key := range slices.Sorted(maps.Keys(p.Sysctls)) {
		if err := setSysctl(key, p.Sysctls[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// configureRoutes runs on the host's thread when all its interfaces are up.
func configureRoutes(p hostPlan) error {
	for _, r := range p.routes {
		iface := p.ifaces[r.iface]
		link, err := findLink(iface.name)
		if err != nil {
			return err
		}
		for _, to := range []struct {
			dst netip.Prefix
			via netip.Addr
		}{{r.dst4, iface.peer4}, {r.dst6, iface.peer6}} {
			if to.dst.Addr().Is4() && !iface.net4.IsValid() {
				continue
			}
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to.dst), Gw: to.via.AsSlice()}
			if len(r.also) > 0 {
				via := []ifacePlan{iface}
				for _, i := range r.also {
					via = append(via, p.ifaces[i])
				}
				if err := multipath(route, via); err != nil {
					return err
				}
			}
			if err := netlink.RouteAdd(route); err != nil {
				return fmt.Errorf("add route to %v via %v: %w", to.dst, to.via, err)
			}
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// etcHosts is /etc/hosts of every host.
func (p plan) etcHosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, h := range p.hosts {
		for _, addr := range []netip.Addr{h.addr4(), h.addr6()} {
			if addr.IsValid() {
				fmt.Fprintf(&b, "%v %s\n", addr, h.Name)
			}
		}
	}
	return b.String()
}
