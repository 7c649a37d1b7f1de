package client

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
	"github.com/detour-collective/dcol/internal/converter/server"
)

// Addresses in the tests' namespace. They are public, because local traffic is never converted.
const (
	here      = "192.0.2.7" // of the client and the relay
	converter = "192.0.2.1"
	server4   = "203.0.113.1"
	server6   = "2001:db8::1"
)

const inNamespace = "DCOL_TEST_IN_NAMESPACE"

// TestMain runs all tests in a network namespace with these addresses.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inNamespace) != "" {
		if err := addAddresses(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(m)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inNamespace+"=yes")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func addAddresses() error {
	if os.Geteuid() != 0 {
		return nil
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	errs := []error{netlink.LinkSetUp(lo)}
	for _, s := range []string{here + "/32", converter + "/32", server4 + "/32", server6 + "/128"} {
		addr, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD // usable at once
		errs = append(errs, netlink.AddrReplace(lo, addr))
	}
	return errors.Join(append(errs, waitForRoute())...)
}

// waitForRoute waits until the kernel, which takes its time with IPv6, routes to the address.
func waitForRoute() (err error) {
	for range 500 {
		var c net.Conn
		if c, err = net.Dial("udp", net.JoinHostPort(server6, "9")); err == nil {
			own := c.LocalAddr().(*net.UDPAddr).IP.String()
			c.Close()
			if own == server6 {
				return nil
			}
			err = fmt.Errorf("connections to %s would come from %s", server6, own)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

func needsNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
}

const memberMark = 0x81000005

var key = cookie.Key{9}

// startConverter runs a converter, and returns its address.
func startConverter(t *testing.T) (*engine.Engine, netip.AddrPort) {
	t.Helper()
	return enginetest.StartAt(t, server.New(key), enginetest.Listen(t, converter, true))
}

// member returns a client that knows converters, and has cookies for them.
func member(t *testing.T, mode choice.Mode, converters ...netip.AddrPort) *Client {
	t.Helper()
	needsNamespace(t)
	c := New(Config{
		Policy: choice.Policy{Mode: mode},
		Cookie: func(to netip.AddrPort) []byte {
			// On one host, a connection to an address comes from the same address.
			return key.Seal(cookie.Claim{Mark: memberMark, Client: to.Addr(), Expires: time.Now().Add(time.Hour)})
		},
	})
	c.Update(func(c *choice.Choice) { c.SetConverters(converters) })
	return c
}
