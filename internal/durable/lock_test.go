package durable

import (
	"errors"
	"io/fs"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("while it is held: %v", err)
	}
	held := make(chan func())
	go func() {
		second, err := Lock(dir)
		if err != nil {
			t.Error(err)
		}
		held <- second
	}()
	select {
	case <-held:
		t.Fatal("two hold it")
	case <-time.After(50 * time.Millisecond):
	}
	unlock()
	(<-held)()
	if unlock, err = TryLock(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := Lock(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// A process that is being started has copies of all descriptors for a moment. They hold no lock that was released.
func TestUnlockWhileProcessesStart(t *testing.T) {
	dir, done := t.TempDir(), make(chan struct{})
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3000 {
		unlock, err := TryLock(dir)
		if err != nil {
			t.Error(err)
			break
		}
		unlock()
	}
	close(done)
	starting.Wait()
}
