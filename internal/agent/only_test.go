package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// lockedBy is lockNamespace in a namespace.
func lockedBy(ns *netnstest.NS, dir string) (lock *namespaceLock, err error) {
	err = ns.Do(func() (err error) {
		lock, err = lockNamespace(dir)
		return err
	})
	return lock, err
}

func TestOneAgentInANamespace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	here, elsewhere := netnstest.New(t), netnstest.New(t)
	first, err := lockedBy(here, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockedBy(here, dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("another agent runs on this host, as process %d", os.Getpid())) {
		t.Errorf("a second agent: %v", err)
	}
	other, err := lockedBy(elsewhere, dir)
	if err != nil {
		t.Fatalf("in another namespace: %v", err)
	}
	if err := errors.Join(first.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	next, err := lockedBy(here, dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	next.Close()
}

// A user of the host neither holds the lock before the agent nor gets in its way otherwise.
func TestUsersCannotLockAgentsOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	here := netnstest.New(t)
	first, err := lockedBy(here, dir)
	if err != nil {
		t.Fatal(err)
	}
	path := first.file.Name()
	for parent := dir; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil { // as /run is
			t.Fatal(err)
		}
	}
	user := func(argv ...string) error {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.Run()
	}
	if err := user("test", "-e", path); err != nil {
		t.Fatalf("the user cannot even see the file, so this shows nothing: %v", err)
	}
	for _, argv := range [][]string{{"flock", "--nonblock", path, "true"}, {"cat", path}, {"rm", "-f", path}, {"touch", path + "2"}} {
		if err := user(argv...); err == nil {
			t.Errorf("a user can %v", argv)
		}
	}
	first.Close()
	var squatter net.Listener
	here.Must(t, func() (err error) {
		squatter, err = net.Listen("unix", "@dcol-agent") // was the lock once, and any user can have it
		return err
	})
	defer squatter.Close()
	lock, err := lockedBy(here, dir)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

// However many agents start and end at once, one at most has the namespace.
func TestLockIsNotLostToItsRemoval(t *testing.T) {
	dir, here := t.TempDir(), netnstest.New(t)
	var held sync.Mutex
	var starting sync.WaitGroup
	got := make(chan bool, 1000)
	for range 8 {
		starting.Go(func() {
			_ = here.Do(func() error {
				for range 50 {
					lock, err := lockNamespace(dir)
					if err != nil {
						continue
					}
					if !held.TryLock() {
						t.Error("two agents have the namespace")
						return nil
					}
					got <- true
					held.Unlock()
					lock.Close()
				}
				return nil
			})
		})
	}
	starting.Wait()
	if len(got) == 0 {
		t.Error("nobody ever had the namespace")
	}
}
