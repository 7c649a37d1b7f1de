// Package cgrouptest makes cgroups for tests. They are folders of cgroup v2, which end with the test.
package cgrouptest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
)

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
	path, err := os.MkdirTemp(parent, "dcol-test-") //nolint:usetesting // only there
	if err != nil {
		t.Skipf("needs a cgroup of its own: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(filepath.Clean(path)); err != nil {
			t.Error(err)
		}
	})
	return path
}
