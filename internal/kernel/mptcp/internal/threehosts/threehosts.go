// Package threehosts is a small network for the tests of package mptcp: a client, a waypoint and a server behind one
// router. Each is a network namespace on the real kernel of the machine. Only tests import it.
package threehosts

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Net is the network. It disappears with the test.
type Net struct {
	Router, Client, Waypoint, Server *Host
}

// Host is one network namespace.
type Host struct {
	Name string
	IP4  netip.Addr
	IP6  netip.Addr
	ns   netns.NsHandle
}

// New makes the network. It skips the test where that is impossible.
func New(t testing.TB) *Net {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	n := &Net{
		Router:   newHost(t, "router"),
		Client:   newHost(t, "client"),
		Waypoint: newHost(t, "waypoint"),
		Server:   newHost(t, "server"),
	}
	for i, h := range []*Host{n.Client, n.Waypoint, n.Server} {
		n.link(t, h, i+1)
	}
	for _, h := range []*Host{n.Router, n.Waypoint} {
		h.Sysctl(t, "net/ipv4/ip_forward", "1")
		h.Sysctl(t, "net/ipv6/conf/all/forwarding", "1")
	}
	return n
}

func newHost(t testing.TB, name string) *Host {
	t.Helper()
	h := &Host{Name: name}
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		errs <- func() (err error) {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("make a network namespace: %w", err)
			}
			if h.ns, err = netns.Get(); err != nil {
				return err
			}
			// Link-local addresses are usable at once, or nearly so.
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644); err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(lo)
		}()
	}()
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.ns.Close() })
	return h
}

// link connects h to the router by the subnets 10.0.i.0/24 and fd00:i::/64. In them the router is 1 and h is 2.
func (n *Net) link(t testing.TB, h *Host, i int) {
	t.Helper()
	h.IP4 = netip.AddrFrom4([4]byte{10, 0, byte(i), 2})
	h.IP6 = netip.MustParseAddr(fmt.Sprintf("fd00:%d::2", i))
	n.Router.Do(t, func() error {
		err := netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: "to-" + h.Name},
			PeerName:      "eth0",
			PeerNamespace: netlink.NsFd(h.ns),
		})
		if err != nil {
			return err
		}
		return configure("to-"+h.Name, fmt.Sprintf("10.0.%d.1/24", i), fmt.Sprintf("fd00:%d::1/64", i))
	})
	h.Do(t, func() error {
		if err := configure("eth0", h.IP4.String()+"/24", h.IP6.String()+"/64"); err != nil {
			return err
		}
		for _, gw := range []string{fmt.Sprintf("10.0.%d.1", i), fmt.Sprintf("fd00:%d::1", i)} {
			if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gw)}); err != nil {
				return fmt.Errorf("default route via %s: %w", gw, err)
			}
		}
		return nil
	})
}

func configure(name string, addresses ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD // usable at once
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("address %s on %s: %w", a, name, err)
		}
	}
	return nil
}

// Do runs f on a thread in the host's namespace. Sockets that f opens belong to the host, and can be used anywhere
// afterwards.
func (h *Host) Do(t testing.TB, f func() error) {
	t.Helper()
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Setns(int(h.ns), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		errs <- err
	}()
	if err := <-errs; err != nil {
		t.Fatalf("on the %s: %v", h.Name, err)
	}
}

// Run runs a program on the host, with stdin.
func (h *Host) Run(t testing.TB, stdin, name string, args ...string) string {
	t.Helper()
	var out []byte
	h.Do(t, func() (err error) {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err = cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	})
	return string(out)
}

// Sysctl sets /proc/sys/NAME on the host.
func (h *Host) Sysctl(t testing.TB, name, value string) {
	t.Helper()
	h.Do(t, func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0o644) })
}

// UserspacePM gives new MPTCP sockets of the host to userspace by the sysctl that this kernel has. back restores the
// earlier value.
func (h *Host) UserspacePM(t testing.TB, sysctl func() (name, value string, err error)) (back func()) {
	t.Helper()
	name, value, err := sysctl()
	if err != nil {
		t.Fatal(err)
	}
	var before []byte
	h.Do(t, func() (err error) {
		before, err = os.ReadFile("/proc/sys/" + name)
		return err
	})
	h.Sysctl(t, name, value)
	return func() { h.Sysctl(t, name, strings.TrimSpace(string(before))) }
}

// AddAddress gives the host another address on its link.
func (h *Host) AddAddress(t testing.TB, prefix string) {
	t.Helper()
	h.Do(t, func() error { return configure("eth0", prefix) })
}

// RemoveAddress takes an address off the host's link.
func (h *Host) RemoveAddress(t testing.TB, prefix string) {
	t.Helper()
	h.Do(t, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(prefix)
		if err != nil {
			return err
		}
		return netlink.AddrDel(l, addr)
	})
}

// Forward makes port on the waypoint lead to the server's address.
func (n *Net) Forward(t testing.TB, port uint16, to netip.AddrPort) {
	t.Helper()
	target := to.String()
	family := "ip"
	if to.Addr().Is6() {
		family = "ip6"
	}
	n.Waypoint.Run(t, fmt.Sprintf(`
table %[1]s detour%[2]d {
	chain pre {
		type nat hook prerouting priority dstnat
		tcp dport %[2]d dnat to %[3]s
	}
	chain post {
		type nat hook postrouting priority srcnat
		ct status dnat masquerade
	}
}
`, family, port, target), "nft", "-f", "-")
}
