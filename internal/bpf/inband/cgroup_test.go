package inband

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/netnstest"
)

func TestCgroupMounts(t *testing.T) {
	for _, c := range []struct {
		name, mountinfo string
		want            []string
	}{
		{"unified", "25 22 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n", []string{"/sys/fs/cgroup"}},
		{"hybrid", `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
37 31 0:34 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
38 31 0:35 / /sys/fs/cgroup/unified rw shared:1 master:2 - cgroup2 cgroup2 rw
`, []string{"/sys/fs/cgroup/unified"}},
		{"parts of it, too", `40 1 0:35 /system.slice/a /run/a rw - cgroup2 cgroup2 rw
41 1 0:35 / /run/whole\040hierarchy\134 rw - cgroup2 cgroup2 rw
42 1 0:35 /system.slice /run/b rw - cgroup2 cgroup2 rw
43 1 0:35 /../.. /run/above rw - cgroup2 cgroup2 rw
`, []string{"/run/above", `/run/whole hierarchy\`, "/run/b", "/run/a"}},
		{"none", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs cgroup2 rw\n", nil},
		{"nonsense", "\n-\n - cgroup2 \na b - cgroup2 c\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := cgroupMounts(strings.NewReader(c.mountinfo))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestCgroupThatIsNone(t *testing.T) {
	ns := netnstest.New(t)
	for _, path := range []string{t.TempDir(), "/nowhere", "/proc"} {
		var unavailable *UnavailableError
		err := ns.Do(func() error {
			_, err := OpenSender(SenderConfig{Cgroup: path})
			return err
		})
		if !errors.As(err, &unavailable) || unavailable.Mend == "" {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A bind mount of a part of the hierarchy is as good as its folder.
func TestCgroupByBindMount(t *testing.T) {
	group, elsewhere := newCgroup(t), t.TempDir()
	ns := netnstest.New(t)
	ns.Must(t, func() error {
		// The mount is of this thread's own mount namespace, and goes with it.
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount(group, elsewhere, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		s, err := OpenSender(SenderConfig{Cgroup: elsewhere})
		if err != nil {
			return err
		}
		if n := programsOf(t, group); n != 1 {
			t.Errorf("%d programs on the cgroup", n)
		}
		return s.Close()
	})
}

// An agent that is killed leaves filters, which CleanUp removes, and no program
// on the cgroup.
func TestKilled(t *testing.T) {
	group, p := newCgroup(t), newPair(t)
	agent := start(t, p.client, "", "agent", group, strconv.Itoa(indexOf(t, p.client, "eth0")))
	if n := programsOf(t, group); n != 1 {
		t.Fatalf("%d programs on the cgroup of an agent at work", n)
	}
	if err := agent.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.cmd.Wait()
	if n := programsOf(t, group); n != 0 {
		t.Errorf("%d programs left on the cgroup", n)
	}
	checkState(t, p.client, "killed", "eth0 clsact",
		"eth0 egress dcol-inband-send+qdisc", "eth0 ingress dcol-inband-receive+qdisc")
	p.client.Must(t, CleanUp)
	checkState(t, p.client, "cleaned up")
}

func programsOf(t testing.TB, cgroup string) int {
	t.Helper()
	group, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	result, err := link.QueryPrograms(link.QueryOptions{Target: int(group.Fd()), Attach: ebpf.AttachCGroupSockOps})
	if err != nil {
		t.Fatal(err)
	}
	return len(result.Programs)
}
