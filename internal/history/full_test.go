package history

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/api"
)

// A full disk loses nothing that the file has. What happens in the meantime is written when there is room again.
func TestFullDisk(t *testing.T) { onSmallDisk(t, fillDisk) }

// If the disk is full when the file is opened, the file does not count as damaged, whatever room is left in it.
func TestFullDiskAtTheStart(t *testing.T) {
	onSmallDisk(t, func(t *testing.T, dir string) {
		for minutes := range 12 {
			startOnFullDisk(t, filepath.Join(dir, fmt.Sprint(minutes)), minutes)
		}
	})
}

// The first start fails on a full disk. The next one, with room again, succeeds.
func TestFirstStartOnAFullDisk(t *testing.T) {
	onSmallDisk(t, func(t *testing.T, dir string) {
		for room := range 6 {
			path := filepath.Join(dir, "history.db")
			ballast := fill(t, dir)
			if err := os.Truncate(ballast, smallDisk-int64((room+1)*os.Getpagesize())); err != nil {
				t.Error(err)
			}
			s, err := Open(path)
			if _, damaged := errors.AsType[*DamagedError](err); damaged {
				t.Errorf("with %d pages left: %v", room, err)
			}
			if s == nil {
				os.Remove(ballast)
				if s, err = Open(path); err != nil {
					t.Errorf("with room again: %v", err)
				}
			}
			if s != nil {
				s.Close()
			}
			os.Remove(ballast)
			os.Remove(path)
		}
	})
}

func startOnFullDisk(t *testing.T, dir string, minutes int) {
	r := NewRecorder(dir, nil, slog.New(slog.DiscardHandler))
	for i := range minutes {
		r.pending = byMinute{used(noon.Add(time.Duration(i)*time.Minute), 1)}
		r.keep()
	}
	if r.store == nil || r.Problem() != "" {
		t.Errorf("no store of %d minutes: %s", minutes, r.Problem())
		return
	}
	kept := len(read(t, r.store, api.StepMinute))
	if err := r.store.Close(); err != nil {
		t.Error(err)
	}
	ballast := fill(t, filepath.Dir(dir))
	defer os.RemoveAll(dir)
	s, err := Open(File(dir))
	if err != nil {
		t.Errorf("with %d minutes, on a full disk: %v", minutes, err)
	}
	if s != nil {
		s.Close()
	}
	os.Remove(ballast)
	if s, err = Open(File(dir)); err != nil {
		t.Errorf("with room again: %v", err)
		return
	}
	if n := len(read(t, s, api.StepMinute)); n != kept {
		t.Errorf("of %d minutes, %d are left", kept, n)
	}
	s.Close()
}

// smallDisk is the size of the test's disk in bytes.
const smallDisk = 256 << 10

// fill writes a file that uses up the disk.
func fill(t *testing.T, dir string) (ballast string) {
	ballast = filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, smallDisk+1), 0o600); err == nil {
		t.Error("the disk is not full")
	}
	return ballast
}

// onSmallDisk runs a test with a folder on a small file system.
func onSmallDisk(t *testing.T, run func(t *testing.T, dir string)) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts a small file system")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the mount ends with the thread
		dir := t.TempDir()
		for _, err := range []error{
			unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", smallDisk)),
		} {
			if err != nil {
				t.Error(err)
				return
			}
		}
		run(t, dir)
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	<-done
}

func fillDisk(t *testing.T, dir string) {
	r := NewRecorder(dir, nil, slog.New(slog.DiscardHandler))
	if r.store == nil {
		t.Errorf("no store: %s", r.Problem())
		return
	}
	r.pending = byMinute{used(noon, 1)}
	r.keep()
	ballast := fill(t, dir)
	at := noon
	for i := 0; i < 2000 && r.Problem() == ""; i++ {
		at = at.Add(time.Minute)
		r.pending.add(used(at, 1), at, at)
		r.keep()
	}
	if r.Problem() == "" {
		t.Error("a full disk is no problem")
	}
	t.Logf("after %v: %s", at.Sub(noon), r.Problem())
	before, more := len(read(t, r.store, api.StepMinute)), len(r.pending)
	if err := os.Remove(ballast); err != nil {
		t.Error(err)
	}
	r.keep()
	if n := len(read(t, r.store, api.StepMinute)); n != before+more || r.Problem() != "" {
		t.Errorf("with room again, %d minutes became %d; the problem is %q", before, n, r.Problem())
	}
	if err := r.store.Close(); err != nil {
		t.Error(err)
	}
	s, err := Open(File(dir))
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	if n := len(read(t, s, api.StepMinute)); n != before+more {
		t.Errorf("opened again, there are %d minutes, not %d", n, before+more)
	}
}
