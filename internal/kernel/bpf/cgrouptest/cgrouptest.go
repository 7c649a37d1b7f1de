// Package cgrouptest makes cgroups for tests, which are removed with the test, and attaches programs to their sockets.
// A cgroup is a folder of cgroup v2.
package cgrouptest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Open opens a program for the sockets of a namespace, at the root cgroup. It skips the test on a host without cgroup v2.
func Open[P io.Closer](t testing.TB, ns *netnstest.NS, open func(cgroup string) (P, error)) (program P) {
	t.Helper()
	ns.Must(t, func() (err error) {
		program, err = open("")
		if e, ok := errors.AsType[*sockops.Error](err); ok && !e.Occupied {
			t.Skipf("needs cgroup v2: %v", err)
		}
		return err
	})
	return program
}

// TwoCapabilitiesAreEnough checks that a program can be opened and closed with the capabilities of the agent's systemd
// unit.
func TwoCapabilitiesAreEnough[P io.Closer](t testing.TB, open func(cgroup string) (P, error)) {
	t.Helper()
	limited := func(cgroup string) (program P, err error) {
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return program, err
		}
		program, err = open(cgroup)
		if err != nil {
			return program, err
		}
		return program, program.Close()
	}
	Open(t, netnstest.New(t), limited)
}

// New makes a cgroup. It skips the test on a host where it cannot.
func New(t testing.TB) string {
	t.Helper()
	root, err := sockops.OpenCgroup("")
	if err != nil {
		t.Skipf("needs cgroup v2: %v", err)
	}
	defer root.Close()
	return In(t, root.Name())
}

// In makes a cgroup in another one. It skips the test on a host where it cannot.
func In(t testing.TB, parent string) string {
	t.Helper()
	path, err := os.MkdirTemp(parent, "dcol-test-") //nolint:usetesting // cgroups exist only there
	if err != nil {
		t.Skipf("needs a cgroup of its own: %v", err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // as systemd makes them
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(filepath.Clean(path)); err != nil {
			t.Error(err)
		}
	})
	return path
}
