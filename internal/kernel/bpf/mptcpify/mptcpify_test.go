package mptcpify

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestProgramHasWhatAttachSets(t *testing.T) {
	spec, err := loadProg()
	if err != nil {
		t.Fatal(err)
	}
	for _, scope := range []Scope{{NetworkNamespace: 1}, {NetworkNamespace: 1, Cgroup: "/"}} {
		if err := setScope(spec, scope); err != nil {
			t.Error(err)
		}
	}
	if p := spec.Programs["mptcpify"]; p.AttachTo != "update_socket_protocol" || !strings.Contains(p.License, "GPL") {
		t.Errorf("program attaches to %q under %q", p.AttachTo, p.License)
	}
}

// TestAttach makes a socket under the hook where the kernel allows that, and
// wants a refusal with its fix where it does not.
func TestAttach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// Never unlocked: the thread dies with the test, and the namespace with it.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	root := cgroupRoot(t)
	empty := filepath.Join(root, "dcol-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(empty); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		name     string
		scope    Scope
		protocol int
	}{
		{"this network namespace", Scope{NetworkNamespace: uint32(st.Ino)}, unix.IPPROTO_MPTCP},
		{"another", Scope{NetworkNamespace: 1}, unix.IPPROTO_TCP},
		{"the cgroup above all", Scope{NetworkNamespace: uint32(st.Ino), Cgroup: root}, unix.IPPROTO_MPTCP},
		{"a cgroup without us", Scope{NetworkNamespace: uint32(st.Ino), Cgroup: empty}, unix.IPPROTO_TCP},
	} {
		// A subtest would be another thread, in another namespace.
		hook, err := Attach(c.scope)
		var unavailable *UnavailableError
		if errors.As(err, &unavailable) {
			if unavailable.Fix == "" {
				t.Errorf("no fix in %v", err)
			}
			t.Skipf("the refusal is as it should be: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, flags := range []int{0, unix.SOCK_CLOEXEC, unix.SOCK_NONBLOCK, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK} {
			if got := protocolOfNewSocket(t, flags); got != c.protocol {
				t.Errorf("%s: protocol %d, want %d (flags %#x)", c.name, got, c.protocol, flags)
			}
		}
		if err := hook.Close(); err != nil {
			t.Error(err)
		}
		if got := protocolOfNewSocket(t, 0); got != unix.IPPROTO_TCP {
			t.Errorf("%s: protocol %d after the hook", c.name, got)
		}
	}
}

func cgroupRoot(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[2] == "cgroup2" {
			return fields[1]
		}
	}
	t.Skip("needs cgroup v2: mount -t cgroup2 none /sys/fs/cgroup")
	return ""
}

func protocolOfNewSocket(t *testing.T, flags int) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		t.Fatal(err)
	}
	return protocol
}
