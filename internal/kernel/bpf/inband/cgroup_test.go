package inband

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestCgroupThatIsNone(t *testing.T) {
	ns := netnstest.New(t)
	for _, path := range []string{t.TempDir(), "/nowhere", "/proc"} {
		var unavailable *UnavailableError
		err := ns.Do(func() error {
			_, err := OpenSender(SenderConfig{Cgroup: path})
			return err
		})
		if !errors.As(err, &unavailable) || unavailable.Fix == "" {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A bind mount of a part of the hierarchy is as good as its folder.
func TestCgroupByBindMount(t *testing.T) {
	group, elsewhere := cgrouptest.New(t), t.TempDir()
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
	group, p := cgrouptest.New(t), newPair(t)
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
