package client

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// A file is written at its interval, never twice at a time. A failure is logged once, and once more after a success.
func TestStateFileIsDue(t *testing.T) {
	f, logged := remembering(t)
	start := time.Now()
	if f.due(start) || f.due(start.Add(f.every-time.Second)) {
		t.Error("saved too early: the first call begins the wait")
	}
	for i, full := range []bool{true, true, false, true} {
		if !f.due(start.Add(time.Duration(i+1) * f.every)) {
			t.Fatal("not saved")
		}
		if f.due(start.Add(time.Duration(i+3) * f.every)) {
			t.Fatal("saved twice at a time")
		}
		var err error
		if full {
			err = os.ErrInvalid
		}
		f.ended(err)
	}
	if n := strings.Count(logged.String(), "cannot be saved"); n != 2 {
		t.Errorf("logged %d times: %s", n, logged)
	}
	if nothing := (&stateFile{}); nothing.due(start) || nothing.due(start.Add(time.Hour)) {
		t.Error("a file without a name is written")
	}
}

// The same content is written once, unless the write failed. Nothing to remember leaves no file.
func TestStateFileIsWritten(t *testing.T) {
	f, logged := remembering(t)
	f.path = filepath.Join(filepath.Dir(f.path), "state", "file")
	if f.write(memoryOf(measured)) == nil {
		t.Error("written into a folder that is not there")
	}
	if err := os.Mkdir(filepath.Dir(f.path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.write(memoryOf(measured)); err != nil {
		t.Fatal(err)
	}
	if len(readMemory(f).Trails) == 0 {
		t.Errorf("after a failure, it is not written: %s", logged)
	}
	before, err := os.Stat(f.path)
	if err == nil {
		err = f.write(memoryOf(measured))
	}
	if err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(f.path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same content is written again: %v", err)
	}
	for range 2 {
		f.writeLast(memoryOf(path.Memory{}))
		if _, err := os.Stat(f.path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file without anything in it: %v", err)
		}
	}
	if logged.Len() > 0 {
		t.Errorf("logged %s", logged)
	}
}
