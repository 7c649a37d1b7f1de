package session

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inNamespace runs a test in a separate process in a new network namespace, because many goroutines create sockets.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	const mark = "DCOL_TEST_IN_NAMESPACE"
	if os.Getenv(mark) == t.Name() {
		up(t, "lo")
		f(t)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	args := []string{"-test.run=" + pattern(t.Name()), "-test.v"}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("this machine allows no network namespaces: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in its namespace: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// inOtherNamespace runs f on a thread in a second namespace. The namespace exists as long as one of its sockets.
func inOtherNamespace(t *testing.T, f func() error) {
	t.Helper()
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		failed <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			return f()
		}()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

func up(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	return link
}

func addAddr(link netlink.Link, prefix string) error {
	p := netip.MustParsePrefix(prefix)
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return netlink.AddrAdd(link, a)
}

func delAddr(link netlink.Link, prefix string) error {
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return netlink.AddrDel(link, a)
}

// network is a client (this process's namespace) and a waypoint with two addresses of each family.
type network struct {
	client netlink.Link
	server *waypoint
}

func newNetwork(t *testing.T, config served) *network {
	t.Helper()
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	n := &network{}
	config.Listen = ":45672"
	inOtherNamespace(t, func() error {
		// Package net tries ::1 once to find out whether there is IPv6. Without it, ":45672" is IPv4 only.
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(own)}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		link, err := netlink.LinkByName("uplink")
		if err != nil {
			return err
		}
		for _, a := range []string{"10.9.0.1/24", "10.9.0.2/24", "fd09::1/64", "fd09::2/64"} {
			if err := addAddr(link, a); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		n.server = startServer(t, config)
		return nil
	})
	n.client = up(t, "eth0")
	for _, a := range []string{"10.9.0.10/24", "fd09::10/64"} {
		if err := addAddr(n.client, a); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// A waypoint with several addresses answers from the address to which the request was sent, in both families.
func TestEveryAddressOfAWaypoint(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(t *testing.T) {
		a := newAuthority(t)
		newNetwork(t, served{Identity: a.identity("bob")})
		alice := a.identity("alice")
		for addr, own := range map[string]string{"10.9.0.1": "10.9.0.10", "10.9.0.2": "10.9.0.10", "fd09::1": "fd09::10", "fd09::2": "fd09::10"} {
			m := startClient(t, alice, "bob", netip.AddrPortFrom(netip.MustParseAddr(addr), 45672))
			if s := m.awaitUp(); s.Observed.Addr() != netip.MustParseAddr(own) || s.Local != s.Observed.Addr() {
				t.Errorf("%s sees us at %v; we leave from %v", addr, s.Observed, s.Local)
			}
			if g := m.mustMap("203.0.113.5:443"); g.Client != netip.MustParseAddr(own) {
				t.Errorf("%s grants for %v", addr, g.Client)
			}
		}
	})
}

// If the host's address changes, the session follows. If that takes too long, a new session begins. Grants are for the
// new address.
func TestAddressChange(t *testing.T) {
	for name, told := range map[string]bool{"told": true, "untold": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inNamespace(t, func(t *testing.T) { addressChange(t, told) })
		})
	}
}

func addressChange(t *testing.T, told bool) {
	a := newAuthority(t)
	g := &granter{}
	n := newNetwork(t, served{Identity: a.identity("bob"), Handler: g})
	for _, change := range []struct{ at, from, to string }{
		{"10.9.0.1", "10.9.0.10/24", "10.9.0.11/16"},
		{"fd09::1", "fd09::10/64", "fd09::11/64"},
	} {
		m := startClient(t, a.identity("alice"), "bob", netip.AddrPortFrom(netip.MustParseAddr(change.at), 45672))
		m.awaitUp()
		m.mustMap("203.0.113.5:443")
		if err := addAddr(n.client, change.to); err != nil {
			t.Fatal(err)
		}
		if err := delAddr(n.client, change.from); err != nil {
			t.Fatal(err)
		}
		if told {
			m.NetworkChanged()
		}
		want := netip.MustParsePrefix(change.to).Addr()
		m.await("being not usable", func(s State) bool { return !s.Usable() })
		s := m.await("being usable at the new address", State.Usable)
		if s.Observed.Addr() != want || s.Local != want {
			t.Errorf("seen at %v, leaving from %v, want %v", s.Observed, s.Local, want)
		}
		if got := m.mustMap("203.0.113.5:443"); got.Client != want {
			t.Errorf("granted for %v, want %v", got.Client, want)
		}
		m.Close()
	}
}

// pattern matches exactly one test or subtest.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
