// Package netnstest provides tests with network namespaces joined by veth pairs, and with servers in them. Namespaces
// have no names on the host, so nothing is left behind however a test ends.
package netnstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NS is a network namespace that lives as long as the test.
type NS struct{ file *os.File }

// New makes a network namespace with its loopback up. It skips the test without root.
func New(t testing.TB) *NS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	ns := &NS{}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare the network namespace: %w", err)
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		ns.file = file
		if err := resetInherited(); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.file.Close() })
	return ns
}

// resetInherited sets the kernel's defaults in the calling thread's namespace for values that a new
// namespace inherits from its machine (net.core.devconf_inherit_init_net), so that tests behave the
// same on every machine.
func resetInherited() error {
	for _, s := range [][2]string{
		{"ipv4/ip_forward", "0"}, // first, because it resets others
		{"ipv4/conf/all/accept_redirects", "1"},
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		{"ipv6/conf/all/forwarding", "0"},
		{"ipv6/conf/all/disable_ipv6", "0"},
		{"ipv6/conf/default/disable_ipv6", "0"},
	} {
		err := os.WriteFile("/proc/sys/net/"+s[0], []byte(s[1]), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return fmt.Errorf("reset what the namespace inherited: %w", err)
		}
	}
	return nil
}

// Do runs fn on a thread inside the namespace and returns its error. Sockets that fn opens stay in
// the namespace, but goroutines that it starts do not run there.
func (ns *NS) Do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return fn()
	})
}

// onThread runs fn on a thread that ends with it, because the thread's namespace differs from the
// process's.
func onThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		finished := false
		defer func() { // fn may end the goroutine: t.FailNow in the wrong place
			if !finished {
				result <- errors.New("the function on the namespace's thread did not return")
			}
		}()
		err := fn()
		finished = true
		result <- err
	}()
	return <-result
}

// Must runs fn inside the namespace and fails the test on an error. fn may skip the test.
func (ns *NS) Must(t testing.TB, fn func() error) {
	t.Helper()
	err := ns.Do(fn)
	if t.Skipped() { // which has ended fn's goroutine only
		t.SkipNow()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Output runs a program inside the namespace and returns its output.
func (ns *NS) Output(t testing.TB, program string, arg ...string) string {
	t.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command(program, arg...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, arg, err, out)
	}
	return string(out)
}

// Start starts a program inside the namespace, and in a cgroup unless that is empty. The test talks to it through its
// input and output. At the end of the test the input ends, and the program is waited for.
func (ns *NS) Start(t testing.TB, cmd *exec.Cmd, cgroup string) (in io.WriteCloser, out io.ReadCloser) {
	t.Helper()
	if cgroup != "" {
		group, err := os.Open(cgroup)
		if err != nil {
			t.Fatal(err)
		}
		defer group.Close()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	ns.Must(t, cmd.Start)
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return in, out
}

// Listen listens on a TCP address inside the namespace until the test ends.
func (ns *NS) Listen(t testing.TB, address string) net.Listener {
	t.Helper()
	var l net.Listener
	ns.Must(t, func() (err error) {
		var lc net.ListenConfig
		l, err = lc.Listen(context.Background(), "tcp", address)
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Dial connects to a TCP address from inside the namespace.
func (ns *NS) Dial(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
	var c net.Conn
	err := ns.Do(func() (err error) {
		var d net.Dialer
		d.SetMultipathTCP(false)
		c, err = d.DialContext(ctx, "tcp", address.String())
		return err
	})
	return c, err
}

// End is one end of a veth pair, or a TUN interface.
type End struct {
	NS        *NS
	Name      string
	Addresses []string // prefixes, such as "192.0.2.1/24"
}

// Veth joins two namespaces, and returns when both ends are ready.
func Veth(t testing.TB, a, b End) {
	t.Helper()
	a.NS.Must(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = a.Name
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerNamespace: netlink.NsFd(int(b.NS.file.Fd()))})
	})
	a.up(t)
	b.up(t)
	a.await(t)
	b.await(t)
}

func (e End) up(t testing.TB) {
	t.Helper()
	e.NS.Must(t, func() error {
		link, err := netlink.LinkByName(e.Name)
		if err != nil {
			return err
		}
		for _, a := range e.Addresses {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD // usable at once
			if err := netlink.AddrAdd(link, addr); err != nil {
				return fmt.Errorf("add %s to %s: %w", a, e.Name, err)
			}
		}
		return netlink.LinkSetUp(link)
	})
}

// await waits until the kernel has noticed that the link works, and that the addresses are this host's. It does both
// in the background, late on a busy machine.
func (e End) await(t testing.TB) {
	t.Helper()
	e.NS.Must(t, func() error {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			missing, err := e.missing()
			if err != nil || missing == "" {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s has no %s", e.Name, missing)
			}
		}
	})
}

// missing names what the end still lacks, if anything.
func (e End) missing() (string, error) {
	link, err := netlink.LinkByName(e.Name)
	if err != nil {
		return "", err
	}
	if link.Type() == "veth" && link.Attrs().OperState != netlink.OperUp { // that of a TUN interface is not known
		return "carrier", nil
	}
	for _, a := range e.Addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return "", err
		}
		routes, err := netlink.RouteGet(addr.IP)
		if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
			return "route to its own address " + a, nil //nolint:nilerr // there is none yet
		}
	}
	return "", nil
}

// Route adds a route inside the namespace.
func (ns *NS) Route(t testing.TB, prefix, via string) {
	t.Helper()
	ns.Must(t, func() error {
		p, err := netip.ParsePrefix(prefix)
		if err != nil {
			return err
		}
		route := &netlink.Route{
			Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
			Gw:  net.ParseIP(via),
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("route %s via %s: %w", prefix, via, err)
		}
		return nil
	})
}

// LimitRights restricts the calling thread to these capabilities. It is for use in Do and Must, whose threads end
// with fn.
func LimitRights(capabilities ...int) error {
	var data [2]unix.CapUserData
	for _, c := range capabilities {
		data[c/32].Effective |= 1 << (c % 32)
		data[c/32].Permitted |= 1 << (c % 32)
	}
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
}

// KernelBefore reports whether the running kernel is older than a release. A test may lack what only newer ones have.
func KernelBefore(t testing.TB, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &a, &b); err != nil {
		t.Fatalf("the kernel's release %q: %v", name.Release, err)
	}
	return a < major || a == major && b < minor
}
