package durable

import (
	"errors"
	"io/fs"
	"path/filepath"
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
